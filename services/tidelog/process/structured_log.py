"""Structured logs: an event with key=value pairs for a terminal, JSON lines otherwise.

Modules call `structlog.get_logger(__name__)` at import. No log is written before the process calls
`configure_logging`. Logs go to standard error, because standard output belongs to the command.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import structlog

from tidelog.model.text import printable
from tidelog.model.trace_context import add_trace_ids

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_METHOD_LEVELS = {**_LEVELS, "warn": logging.WARNING}
"""The levels of a logger's methods. All others, such as `exception`, are errors."""
_own_levels: dict[str, str] = {}
"""The levels of loggers that have one of their own, by name."""


def configure_logging(log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Configures the logs of this process. `log_format` is `text`, `json` or `auto` (text on a terminal);
    `level` is the lowest level that is logged.

    Raises ValueError for other values. Loggers of the standard library, such as asyncio's, write the same
    format.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level}; valid levels are {', '.join(_LEVELS)}")
    if log_format not in ("auto", "text", "json"):
        raise ValueError(f"unknown log format {log_format}; valid formats are auto, text and json")
    output = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and output.isatty())
    shared: list[Processor] = [
        _drop_below_own_level,
        structlog.contextvars.merge_contextvars,
        add_trace_ids,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers = _text_renderers(output) if as_text else _json_renderers()
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_LoggerFactory(output),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def set_log_level(level: str) -> None:
    """Sets the lowest level that loggers without a level of their own log. Raises ValueError for an unknown
    level.
    """
    if level not in _LEVELS:
        raise ValueError(f"unknown log level {level}; valid levels are {', '.join(_LEVELS)}")
    logging.getLogger().setLevel(_LEVELS[level])
    _filter_by_lowest_level()


def set_logger_level(name: str, level: str | None) -> None:
    """Gives the logger and those below it (`name.*`) a level of their own, or, with None, takes it away.
    Raises ValueError for an unknown level.
    """
    if level is None:
        _own_levels.pop(name, None)
    elif level in _LEVELS:
        _own_levels[name] = level
    else:
        raise ValueError(f"unknown log level {level}; valid levels are {', '.join(_LEVELS)}")
    _filter_by_lowest_level()


def log_level(name: str = "") -> str:
    """Returns the lowest level that a logger logs: its own, that of the nearest logger above it, or that of
    all loggers.
    """
    while name:
        own = _own_levels.get(name)
        if own is not None:
            return own
        name = name.rpartition(".")[0]
    least = logging.getLogger().level
    return next((name for name, number in _LEVELS.items() if number >= least), "error")


def _filter_by_lowest_level() -> None:
    """Makes loggers skip what no logger logs. `_drop_below_own_level` drops the rest."""
    lowest = min(_LEVELS[level] for level in (log_level(), *_own_levels.values()))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(lowest))


def _drop_below_own_level(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Drops an event below the level of its logger. Raises structlog.DropEvent."""
    if _own_levels and _METHOD_LEVELS.get(method, logging.ERROR) < _LEVELS[log_level(_name_of(logger))]:
        raise structlog.DropEvent
    return event


def _name_of(logger: WrappedLogger) -> str:
    name: str | None = getattr(logger, "name", None)
    return name or ""


def _text_renderers(output: TextIO) -> list[Processor]:
    # Plain tracebacks. Rich tracebacks show local variables, which may contain records and secrets.
    renderer = structlog.dev.ConsoleRenderer(
        colors=output.isatty(), pad_event_to=0, exception_formatter=_printable_traceback
    )
    return [_escape_names, renderer]


def _escape_names(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escapes what a terminal would obey in texts, which may have names that clients choose. The renderer
    does this for other values, and JSON for all.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def _printable_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(printable(text.getvalue(), kept="\n"))


def _json_renderers() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


class BoundedLog:
    """A logger for events that clients cause, so that they cannot fill the disk. Beyond its rate lines are
    left out, and the next line states how many.
    """

    def __init__(
        self, name: str, lines_per_second: int, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = structlog.get_logger(name)
        self._lines_per_second = lines_per_second
        self._monotonic_s = monotonic_s
        self._second = -1
        self._left = 0
        self._omitted = 0

    def info(self, event: str, **fields: object) -> None:
        if self._takes(fields):
            self._logger.info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        if self._takes(fields):
            self._logger.warning(event, **fields)

    def _takes(self, fields: dict[str, object]) -> bool:
        """Returns whether the line is written. Adds the number of lines that were left out before."""
        second = int(self._monotonic_s())
        if second != self._second:
            self._second, self._left = second, self._lines_per_second
        if not self._left:
            self._omitted += 1
            return False
        self._left -= 1
        if self._omitted:
            fields["lines_omitted_before"] = self._omitted
            self._omitted = 0
        return True


class _NamedLogger(structlog.WriteLogger):
    """A logger that writes lines and knows the name that was given to `get_logger`."""

    def __init__(self, file: TextIO, name: str | None) -> None:
        super().__init__(file)
        self.name = name


class _LoggerFactory:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, name: str | None = None) -> _NamedLogger:
        return _NamedLogger(self._file, name)
