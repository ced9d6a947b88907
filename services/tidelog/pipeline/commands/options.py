"""Options that several subcommands of `tidelog pipeline` share, and how users write their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidelog.pipeline.errors import PipelineError

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "TIDELOG_BOOTSTRAP_SERVER"
F = TypeVar("F", bound=Callable[..., object])
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SIZE: Final = re.compile(r"(\d+)\s*(k|m|g)?i?b?", re.IGNORECASE)
_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Options: TypeAlias = Mapping[str, Any]
"""The values of a command's options by name. click has checked their types."""


class Duration(click.ParamType[int]):
    """Parses durations such as 10s, 5m and 1h into milliseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        span_ms = _span_ms(str(value))
        if not span_ms:
            self.fail(f"'{value}' is not a duration; use for example 500ms, 10s, 5m, 1h or 1d", param, ctx)
        return span_ms


class Size(click.ParamType[int]):
    """Parses sizes such as 128m into bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        if found is None or not int(found[1]):
            self.fail(f"'{value}' is not a size; use for example 64m or 1g", param, ctx)
        return int(found[1]) * _BYTES[(found[2] or "").lower()]


def with_bootstrap(function: F) -> F:
    """Adds --bootstrap-server."""
    return click.option(
        "--bootstrap-server",
        "-b",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="The address of a broker, or several addresses to try.",
    )(function)


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Parses KEY=VALUE options. Raises PipelineError."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PipelineError(f"{option} takes KEY=VALUE, not '{text}'")
        found[name] = value
    return found


def parse_span(option: str, text: str) -> int:
    """Returns a period such as `90s` or `6h` in milliseconds. Raises PipelineError."""
    span_ms = _span_ms(text)
    if not span_ms:
        raise PipelineError(f"{option} {text}: use a period such as 90s, 30m, 6h or 7d")
    return span_ms


def _span_ms(text: str) -> int:
    """Returns a period in milliseconds, or 0 if the text is none."""
    found = _SPAN.fullmatch(text.strip())
    return int(float(found[1]) * _UNITS_MS[found[2]]) if found else 0


def parse_moment(option: str, text: str, now_ms: int) -> int:
    """Returns a time in milliseconds since 1970. `text` is a period before `now_ms`, `now`, milliseconds
    since 1970, or a date (UTC unless it names another zone).

    Raises PipelineError.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if _SPAN.fullmatch(text):
        return now_ms - parse_span(option, text)
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{option} {text}: use now, a period such as 6h, or a time such as 2026-01-31T12:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_ids(option: str, text: str | None) -> tuple[int, ...]:
    """Returns the broker ids of a list such as `3,4`. Raises PipelineError."""
    try:
        return tuple(sorted({int(part) for part in (text or "").split(",") if part.strip()}))
    except ValueError:
        raise PipelineError(f"{option} {text}: broker ids are numbers separated by commas") from None


def counted_progress(console: Console, *, transient: bool = False) -> Progress:
    """Returns a bar with a count, on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=transient,
    )
