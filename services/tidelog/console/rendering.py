"""Renders pages from the templates. Everything that comes from the cluster is escaped, and its invisible
characters are made visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tidelog.client.admin.topics import CONFIG_SOURCES
from tidelog.console.core.visible_text import visible
from tidelog.model.instants import DAY_MS, HOUR_MS, MINUTE_MS
from tidelog.model.plurals import counted

HERE: Final = Path(__file__).parent
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
UNKNOWN: Final = "–"  # noqa: RUF001 -- an en dash, as in printed tables
_LAST_SECOND_MS: Final = 253_402_300_799_000  # 9999-12-31, the last day of datetime


def size_text(size_bytes: float | None) -> str:
    """Returns a size with a binary unit, such as `1.5 MiB`."""
    if size_bytes is None:
        return UNKNOWN
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if not unit else f"{size_bytes:.1f} {_UNITS[unit]}"


def count_text(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def rate_text(rate: float | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def duration_text(duration_ms: int | None) -> str:
    """Returns a duration with its two largest units, such as `2 h 5 min`."""
    if duration_ms is None:
        return UNKNOWN
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < MINUTE_MS:
        return f"{duration_ms / 1000:.1f} s"
    if duration_ms < HOUR_MS:
        return f"{duration_ms // MINUTE_MS} min {duration_ms % MINUTE_MS // 1000} s"
    if duration_ms < DAY_MS:
        return f"{duration_ms // HOUR_MS} h {duration_ms % HOUR_MS // MINUTE_MS} min"
    return f"{duration_ms // DAY_MS:,} d {duration_ms % DAY_MS // HOUR_MS} h"


def time_text(at_ms: int | None) -> str:
    """Returns a time of the wall clock in UTC, with milliseconds."""
    if at_ms is None or at_ms < 0:
        return UNKNOWN
    if at_ms > _LAST_SECOND_MS:
        return f"{at_ms} ms"
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def query_text(**values: object) -> str:
    """Returns a query string of those values that are not empty."""
    return urlencode({name: value for name, value in values.items() if value not in ("", None)})


def _finalized(value: object) -> object:
    """Returns what a template prints for a value. Markup, which has its own class, is complete: the filter
    `e` keeps what was typed into a field.
    """
    return visible(value) if type(value) is str else value


class Renderer:
    """The templates of the console."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            size=size_text,
            count=count_text,
            counted=partial(counted, thousands=","),
            rate=rate_text,
            duration=duration_text,
            time=time_text,
            path=lambda text: quote(str(text), safe=""),
        )
        self._environment.globals.update(query=query_text, sources=CONFIG_SOURCES)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(values)
