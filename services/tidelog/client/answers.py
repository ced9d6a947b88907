"""Converts error codes in responses to KafkaError."""

from __future__ import annotations

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem


def error_of(code: int, subject: str, message: str | None = None) -> KafkaError:
    """Returns the exception for an error code. The message is `subject`, then the broker's message.

    If the broker sent no message, Kafka's name of the code takes its place.
    """
    try:
        known = ErrorCode(code)
        name = known.name
    except ValueError:
        known, name = ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}"
    return KafkaError(known, f"{subject}: {message or name}")


def topic_error_of(code: int, name: str, message: str | None = None) -> KafkaError:
    """Returns the exception for a topic. The most frequent errors have messages of their own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{name}' already exists")
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        message = message or topic_name_problem(name)
    return error_of(code, f"topic '{name}'", message)


def raise_on_error(code: int, subject: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise error_of(code, subject, message)


def raise_on_topic_error(code: int, name: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise topic_error_of(code, name, message)
