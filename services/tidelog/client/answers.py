"""Converts error codes in responses to KafkaError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.client.core.delivery_errors import (
    TopicExistsError,
    UnknownTopicError,
    error_with,
    request_error,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem


def topic_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a topic. The most frequent errors have messages of their own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopicError(f"topic '{name}' does not exist")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return TopicExistsError(f"topic '{name}' already exists")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        message = message or topic_name_problem(name)
    return request_error(code, f"topic '{name}'", message)


_OF_A_GROUP: Final[Mapping[int, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members",
    ErrorCode.INVALID_GROUP_ID: "has an invalid name",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "is not accessible to this user: no ACL allows it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "has no coordinator at present",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "is still being loaded by its coordinator",
    ErrorCode.NOT_COORDINATOR: "has moved to another coordinator",
}


def group_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a group. The most frequent errors have messages of their own."""
    sentence = _OF_A_GROUP.get(code)
    if sentence is not None:
        return error_with(ErrorCode(code), f"group '{name}' {sentence}")
    return request_error(code, f"group '{name}'", message)


def raise_on_group_error(code: int, name: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise group_error_of(code, name, message)


def raise_on_error(code: int, subject: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise request_error(code, subject, message)


def raise_on_topic_error(code: int, name: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise topic_error_of(code, name, message)
