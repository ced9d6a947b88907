"""The log of a cluster in a test: warnings and errors go to the standard library's loggers `tidelog.*`, and
pytest shows them with the test that fails.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_NAME = "tidelog"
_WRITTEN = frozenset({"warning", "warn", "error", "critical", "exception"})


def log_quietly() -> None:
    """Sends the log of tidelog to the standard library, unless the program has configured structlog. Other
    users of structlog get the output that it has without a configuration.
    """
    if structlog.is_configured():
        return
    logging.getLogger(_NAME).addHandler(logging.NullHandler())  # otherwise the last resort prints
    config = structlog.get_config()
    structlog.configure(
        processors=[_Route(config["processors"])],
        logger_factory=_LoggerFactory(config["logger_factory"]),
        cache_logger_on_first_use=False,
    )


class _LoggerFactory:
    def __init__(self, default: Any) -> None:  # Any: a callable of structlog that makes any kind of logger
        self._default = default

    def __call__(self, *arguments: Any) -> Any:
        name = arguments[0] if arguments else ""
        if isinstance(name, str) and name.partition(".")[0] == _NAME:
            return logging.getLogger(name)
        return self._default(*arguments)


class _Route:
    """The only processor: it treats the events of tidelog differently from those of others."""

    def __init__(self, default: list[Processor]) -> None:
        self._default = default

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> Any:
        if not isinstance(logger, logging.Logger):
            result: Any = event
            for processor in self._default:
                result = processor(logger, method, result)
            return result
        if method not in _WRITTEN:
            raise structlog.DropEvent
        return structlog.stdlib.render_to_log_kwargs(logger, method, event)
