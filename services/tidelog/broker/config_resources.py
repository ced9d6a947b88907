"""What settings belong to: topics, brokers, their loggers; and which of them this broker answers for."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tidelog.model.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


ALL_BROKERS: Final = ""
"""The name of the broker resource that stands for all brokers."""


def check_broker_name(name: str, own_id: int) -> None:
    """KafkaError(INVALID_REQUEST) unless `name` is this broker's id: other brokers' settings are theirs
    to answer for.
    """
    try:
        broker_id = int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None
    if broker_id != own_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}, but received {name}"
        )


def unserved_resource(resource_type: int) -> KafkaError:
    """For resources that have no settings here (yet)."""
    if resource_type == ResourceType.CLIENT_METRICS:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics are not supported yet")
    if resource_type == ResourceType.GROUP:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Settings of groups are not supported yet")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
