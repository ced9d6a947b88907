"""The loggers of a broker in the terms of Kafka's tools (KIP-412). There is one, `root`. Its level can be
changed while the broker runs; a restart resets it, as in Kafka.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.structured_log import log_level, set_log_level

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
