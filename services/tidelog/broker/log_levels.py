"""A broker's loggers as Kafka's tools see them (KIP-412): one, `root`, whose level can be changed while
the broker runs. The change ends with the process, as in Kafka.
"""

from __future__ import annotations

from typing import Final

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.structured_log import log_level, set_log_level

ROOT_LOGGER: Final = "root"
# Kafka's names for levels -> ours.
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
    """By Kafka's name."""
    return _SHOWN_LEVELS[log_level()]


def check_level(logger: str, level: str) -> None:
    """KafkaError(INVALID_CONFIG) unless the logger exists and can have this level."""
    if logger != ROOT_LOGGER:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist, only {ROOT_LOGGER} does")
    if level.upper() not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{level} is no log level; valid levels are {', '.join(sorted(_LEVELS))}",
        )


def set_level(level: str) -> None:
    """To one that `check_level` let pass."""
    set_log_level(_LEVELS[level.upper()])
