"""Parses times, periods and broker ids as users write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tidelog.pipeline.errors import PipelineError

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_span(option: str, text: str) -> int:
    """Returns a period such as `90s` or `6h` in milliseconds. Raises PipelineError."""
    found = _SPAN.fullmatch(text.strip())
    span_ms = int(float(found[1]) * _UNITS_MS[found[2]]) if found else 0
    if span_ms <= 0:
        raise PipelineError(f"{option} {text}: use a period such as 90s, 30m, 6h or 7d")
    return span_ms


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
