"""Time series and their trends. The module does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

Point = tuple[int, float]
"""A point is (milliseconds since 1970, value). A series is sorted by time."""

SILENT_INTERVALS: Final = 3.0
"""A series with this many missing samples is silent. Fewer missing samples are failed scrapes."""
_CLEAR_SHARE: Final = 0.5
_FEWEST_POINTS: Final = 3


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through the points. `is_clear` says whether the line rises or falls by more than the
    points scatter.
    """

    per_s: float
    last: float
    is_clear: bool


def increase(points: Sequence[Point]) -> float:
    """Returns the increase of a counter, which restarts at 0 with its process."""
    return sum(after - before if after >= before else after for (_, before), (_, after) in pairwise(points))


def interval_ms(times_ms: Sequence[int], default_ms: int) -> int:
    """Returns the usual distance of samples."""
    gaps = [after - before for before, after in pairwise(times_ms) if after > before]
    return int(median(gaps)) if gaps else default_ms


def after_last_fall(points: Sequence[Point]) -> Sequence[Point]:
    """Returns the points from the last fall on. After a fall, a series that only grows is a different
    series.
    """
    for index in range(len(points) - 1, 0, -1):
        if points[index][1] < points[index - 1][1]:
            return points[index:]
    return points


def latest(points: Sequence[Point], window_ms: int) -> Sequence[Point]:
    """Returns the points of the last `window_ms` before the last point."""
    if not points:
        return points
    since_ms = points[-1][0] - window_ms
    return [point for point in points if point[0] >= since_ms]


def trend(points: Sequence[Point]) -> Trend | None:
    """Fits a line by least squares. Returns None with fewer than three different times."""
    if len(points) < _FEWEST_POINTS or points[0][0] == points[-1][0]:
        return None
    data = np.asarray(points, dtype=np.float64)
    times_s = (data[:, 0] - data[0, 0]) / 1000
    values = data[:, 1]
    centred = times_s - times_s.mean()
    per_s = float((centred * (values - values.mean())).sum() / (centred * centred).sum())
    residual = values - values.mean() - per_s * centred
    rise = abs(per_s) * float(times_s[-1])
    return Trend(per_s, float(values[-1]), rise > 0 and rise * _CLEAR_SHARE > float(residual.std()))


def newest_by_time(points: Sequence[Point]) -> list[Point]:
    """Returns the sorted points. Of several points at one time, from several tellers, the greatest is
    kept.
    """
    by_time: dict[int, float] = {}
    for at_ms, value in points:
        known = by_time.get(at_ms)
        by_time[at_ms] = value if known is None else max(known, value)
    return sorted(by_time.items())
