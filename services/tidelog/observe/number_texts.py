"""Turns numbers into text for people: sizes, counts, rates, durations and times. No I/O.

The console has room for exact texts. `tidelog top` and `tidelog doctor` print shorter ones.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tidelog.kernel.instants import DAY_MS, HOUR_MS, MINUTE_MS

UNKNOWN: Final = "–"  # noqa: RUF001 -- an en dash, as in printed tables
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LAST_SECOND_MS: Final = 253_402_300_799_000  # 9999-12-31, the last day of datetime


def size_text(size_bytes: float | None) -> str:
    """Returns a size with a binary unit, such as `1.5 MiB`."""
    if size_bytes is None:
        return UNKNOWN
    unit = 0
    while size_bytes >= 1024 and unit < len(_SIZE_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.{1 if unit else 0}f} {_SIZE_UNITS[unit]}"


def count_text(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"


def rate_text(rate: float | None) -> str:
    if rate is None:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def short(value: float | None) -> str:
    """Returns a number with at most three digits and a decimal prefix, `-` if it is unknown."""
    if value is None:
        return "-"
    for prefix in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5:
            digits = 0 if abs(value) >= 99.95 or value == int(value) else 1
            return f"{value:.{digits}f}{prefix}"
        value /= 1000
    return f"{value:.0f} P"


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


def short_duration(seconds: float | None) -> str:
    """Returns a duration in its greatest unit, such as `1.5 h`, and `-` if it is unknown."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"


def rough_duration(duration_ms: float) -> str:
    """Returns a duration in whole units for a sentence, such as `4 h` or `3 days`."""
    for limit_ms, unit_ms, unit in (
        (MINUTE_MS, 1_000, "s"),
        (HOUR_MS, MINUTE_MS, "min"),
        (2 * DAY_MS, HOUR_MS, "h"),
    ):
        if duration_ms < limit_ms:
            return f"{duration_ms / unit_ms:.0f} {unit}"
    return f"{duration_ms / DAY_MS:.0f} days"


def time_text(at_ms: int | None) -> str:
    """Returns a time of the wall clock in UTC, with milliseconds."""
    if at_ms is None or at_ms < 0:
        return UNKNOWN
    if at_ms > _LAST_SECOND_MS:
        return f"{at_ms} ms"
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def iso_time(at_ms: int) -> str:
    """Returns a time in UTC in the form of ISO 8601, or `-` if it is no time or is after the year 9999."""
    if not 0 <= at_ms < _LAST_SECOND_MS + 1000:
        return "-"
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03}Z"
