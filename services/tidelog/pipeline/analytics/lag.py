"""The lag of a group on a partition: its trend, and when it ends. The module does no I/O.

The rates of production and consumption are the slopes of the log end offset and of the committed offset over
the last part of the history (`trend_window_ms`). Only points after the last fall count, because a fall means
a recreated topic or a seek.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.pipeline.analytics.series import SILENT_INTERVALS, Point, Trend, after_last_fall, latest, trend

READ: Final = "read"
"""The group has read everything."""
DRAINING: Final = "draining"
GROWING: Final = "growing"
STEADY: Final = "steady"
STALLED: Final = "stalled"
"""There are records to read, but the group has not committed an offset."""
GONE: Final = "gone"
"""The lag is not reported at the end of the history: the group was deleted, or its coordinator is not
scraped.
"""
STATES: Final = (STALLED, GROWING, STEADY, DRAINING, READ, GONE)
"""The states, with the worst first."""


@dataclass(frozen=True, slots=True)
class LagTrend:
    """Rates are in records a second, or None with fewer than three samples. `drain_s` is None if the lag does
    not shrink.
    """

    lag: float
    greatest_lag: float
    committed: float | None
    state: str
    produced_per_s: float | None
    consumed_per_s: float | None
    lag_per_s: float | None
    drain_s: float | None
    last_ms: int


def lag_trend(
    lags: Sequence[Point],
    committed: Sequence[Point],
    *,
    window_ms: int,
    interval_ms: int,
    history_end_ms: int,
) -> LagTrend:
    """Returns the trend of one group on one partition. `lags` must not be empty. Both series must be
    sorted.
    """
    last_ms, lag = lags[-1]
    by_time = dict(committed)
    ends = [(at_ms, value + by_time[at_ms]) for at_ms, value in lags if at_ms in by_time]
    recent = latest(_since_set_back(lags, committed, ends), window_ms)
    since_ms = recent[0][0]
    produced = trend([point for point in ends if point[0] >= since_ms])
    consumed = trend([point for point in committed if point[0] >= since_ms])
    change = trend(recent)
    drain_s = None
    if lag <= 0:
        drain_s = 0.0
    elif change is not None and change.per_s < 0 and change.is_clear:
        drain_s = lag / -change.per_s
    return LagTrend(
        lag=lag,
        greatest_lag=max(value for _, value in lags),
        committed=committed[-1][1] if committed else None,
        state=_state_of(
            lag,
            (change.per_s if change.is_clear else 0.0) if change else None,
            _rate(consumed),
            is_gone=history_end_ms - last_ms > SILENT_INTERVALS * interval_ms,
        ),
        produced_per_s=_rate(produced),
        consumed_per_s=_rate(consumed),
        lag_per_s=_rate(change),
        drain_s=drain_s,
        last_ms=last_ms,
    )


def _rate(line: Trend | None) -> float | None:
    return None if line is None else line.per_s


def _since_set_back(
    lags: Sequence[Point], committed: Sequence[Point], ends: Sequence[Point]
) -> Sequence[Point]:
    starts = [after_last_fall(points)[0][0] for points in (committed, ends) if points]
    since_ms = max(starts, default=lags[0][0])
    return [point for point in lags if point[0] >= since_ms] or lags[-1:]


def _state_of(lag: float, lag_per_s: float | None, consumed_per_s: float | None, *, is_gone: bool) -> str:
    if is_gone:
        return GONE
    if lag <= 0:
        return READ
    if consumed_per_s is not None and consumed_per_s <= 0:
        return STALLED
    if lag_per_s is None or lag_per_s == 0:
        return STEADY
    return DRAINING if lag_per_s < 0 else GROWING
