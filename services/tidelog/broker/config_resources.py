"""The resources that settings belong to: topics, brokers, loggers and groups.

The loggers of a broker are `root` and its parts (KIP-412). Their levels can be changed while the broker runs;
a restart resets them, as in Kafka. A part without a level of its own has that of the part above it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tidelog.model.brokers import MAX_SHOWN_NAME_CHARS, parse_broker_id
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.structured_log import log_level, set_log_level, set_logger_level


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
    broker_id = parse_broker_id(name)
    if broker_id is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker id must be an integer, but it is: {name[:MAX_SHOWN_NAME_CHARS]}",
        )
    if broker_id != own_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}, but received {name}"
        )


def unserved_resource(resource_type: int) -> KafkaError:
    """Returns the error for a type of resource that has no settings in tidelog."""
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


# -- loggers

ROOT_LOGGER: Final = "root"
PART_LOGGERS: Final = (
    "tidelog.audit",
    "tidelog.broker",
    "tidelog.broker.coordination",
    "tidelog.broker.handlers",
    "tidelog.broker.log",
    "tidelog.broker.partition",
    "tidelog.broker.replication",
    "tidelog.controller",
    "tidelog.group_coordinator",
    "tidelog.metadata",
    "tidelog.metrics",
    "tidelog.rpc",
    "tidelog.tracing",
)
"""The loggers below `root` that have a level. Each stands for all modules of its package."""
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


def current_level(logger: str = ROOT_LOGGER) -> str:
    """Returns the level of a logger under Kafka's name."""
    return _SHOWN_LEVELS[log_level("" if logger == ROOT_LOGGER else logger)]


def check_level(logger: str, level: str) -> None:
    """Raises KafkaError(INVALID_CONFIG) unless the logger exists and the level is valid."""
    if logger != ROOT_LOGGER and logger not in PART_LOGGERS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Logger {logger} does not exist; DescribeConfigs lists the loggers of this broker",
        )
    if level.upper() not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{level} is not a log level; valid levels are {', '.join(sorted(_LEVELS))}",
        )


def set_level(logger: str, level: str | None) -> None:
    """Changes the level of a logger to one that passed `check_level`. None takes the level of a part away."""
    if logger == ROOT_LOGGER and level is not None:
        set_log_level(_LEVELS[level.upper()])
    else:
        set_logger_level(logger, None if level is None else _LEVELS[level.upper()])
