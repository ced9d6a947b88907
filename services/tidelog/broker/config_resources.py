"""The resources that settings belong to: topics, brokers, loggers and groups.

A broker has one logger, `root` (KIP-412). Its level can be changed while the broker runs; a restart resets
it, as in Kafka.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.structured_log import log_level, set_log_level


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
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


# -- loggers

ROOT_LOGGER: Final = "root"
# Maps Kafka's names of levels to ours.
_LEVELS: Final = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "ERROR": "error",
    "FATAL": "error",
}
_SHOWN_LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


def current_level() -> str:
    """Returns the level of `root` under Kafka's name."""
    return _SHOWN_LEVELS[log_level()]


def check_level(logger: str, level: str) -> None:
    """Raises KafkaError(INVALID_CONFIG) unless the logger exists and the level is valid."""
    if logger != ROOT_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist; the only logger is {ROOT_LOGGER}"
        )
    if level.upper() not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{level} is not a log level; valid levels are {', '.join(sorted(_LEVELS))}",
        )


def set_level(level: str) -> None:
    """Changes the level to one that passed `check_level`."""
    set_log_level(_LEVELS[level.upper()])
