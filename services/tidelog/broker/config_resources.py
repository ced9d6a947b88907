"""The resources that settings belong to: topics, brokers and loggers."""

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
"""The name of the resource that means all brokers."""


def check_broker_name(name: str, own_id: int) -> None:
    """Raises KafkaError(INVALID_REQUEST) unless `name` is this broker's id. Each broker answers only for its
    own settings.
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
    """Returns the error for a type of resource that has no settings in tidelog."""
    if resource_type == ResourceType.CLIENT_METRICS:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics are not supported yet")
    if resource_type == ResourceType.GROUP:
        return KafkaError(ErrorCode.INVALID_REQUEST, "Settings of groups are not supported yet")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
