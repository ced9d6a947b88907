"""Forecasts when retention deletes records that a group has not read. Retention by time comes from the
coordinator's metrics. Retention by size, or by time without those metrics, is estimated from the movement of
the log start offset. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.pipeline.analytics.lag import LagTrend
from tidelog.pipeline.analytics.series import Point, after_last_fall, latest, trend

LOST: Final = "lost"
"""Unread records were deleted."""
AT_RISK: Final = "at risk"
"""At the current rates, records will be deleted before they are read."""
SAFE: Final = "safe"
UNKNOWN: Final = "unknown"
VERDICTS: Final = (LOST, AT_RISK, SAFE, UNKNOWN)
"""The verdicts, with the worst first."""
_FEWEST_MOVES: Final = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """`expires_s` is the time until retention by time may delete the first unread record. `by_time_s` and
    `by_offset_s` are the times until an unread record is deleted at the current rates, or None if that does
    not happen or is unknown. `lost` counts the records that were deleted unread during the history.
    """

    verdict: str
    lost: int
    unread: float
    margin: float | None
    expires_s: float | None
    by_time_s: float | None
    by_offset_s: float | None

    @property
    def loses_in_s(self) -> float | None:
        return min((s for s in (self.by_time_s, self.by_offset_s) if s is not None), default=None)


def forecast(
    lag: LagTrend,
    committed: Sequence[Point],
    starts: Sequence[Point],
    expires: Sequence[Point],
    *,
    window_ms: int,
) -> Forecast:
    """Returns the forecast for one group and partition. `starts` is the log start offset. `expires` is the
    number of seconds that the first unread record is safe. All series must be sorted, and any of them may be
    empty.
    """
    lost = lost_records(committed, starts)
    margin = committed[-1][1] - starts[-1][1] if committed and starts else None
    is_told = bool(expires) and expires[-1][0] >= lag.last_ms
    expires_s = expires[-1][1] if is_told else None
    by_time_s = _until_zero(latest(expires, window_ms)) if is_told and lag.lag > 0 else None
    by_offset_s = _overtaken_in_s(committed, starts, window_ms) if lag.lag > 0 else None
    if lag.lag <= 0:
        verdict = SAFE
    elif by_time_s is not None or by_offset_s is not None:
        soonest_s = min(s for s in (by_time_s, by_offset_s) if s is not None)
        verdict = SAFE if lag.drain_s is not None and lag.drain_s <= soonest_s else AT_RISK
    else:
        # Nothing moves towards a loss. Whether a loss is possible is known only if the metrics were reported.
        verdict = SAFE if is_told or _moves(starts) else UNKNOWN
    return Forecast(LOST if lost else verdict, lost, lag.lag, margin, expires_s, by_time_s, by_offset_s)


def lost_records(committed: Sequence[Point], starts: Sequence[Point]) -> int:
    """Returns how far the log start offset passed the committed offset, summed over all times that it did."""
    lost = 0.0
    index = 0
    reached: float | None = None
    for at_ms, start in starts:
        while index + 1 < len(committed) and committed[index + 1][0] <= at_ms:
            index += 1
        if not committed or committed[index][0] > at_ms:
            continue
        position = committed[index][1]
        # Records that were counted as lost are not counted again while the group does not move.
        position = position if reached is None else max(position, reached)
        if start > position:
            lost += start - position
            reached = start
    return int(lost)


def _until_zero(points: Sequence[Point]) -> float | None:
    """Returns the time until the value reaches 0 at the current rate."""
    if not points:
        return None
    last = points[-1][1]
    if last <= 0:
        return 0.0
    falls = trend(points)
    # With too few samples, the group is assumed to stand still.
    per_s = -1.0 if falls is None else falls.per_s
    return None if per_s >= 0 else last / -per_s


def _overtaken_in_s(committed: Sequence[Point], starts: Sequence[Point], window_ms: int) -> float | None:
    """Returns when the log start offset reaches the committed offset at the current rates."""
    starts = latest(after_last_fall(starts), window_ms)
    committed = latest(after_last_fall(committed), window_ms)
    # The log start offset moves by whole segments, so a trend needs several steps.
    if not committed or _moves(starts) < _FEWEST_MOVES:
        return None
    start, position = trend(starts), trend(committed)
    if start is None:
        return None
    margin = committed[-1][1] - starts[-1][1]
    nearing_per_s = start.per_s - (position.per_s if position else 0.0)
    if margin <= 0:
        return 0.0
    return margin / nearing_per_s if nearing_per_s > 0 else None


def _moves(points: Sequence[Point]) -> int:
    return sum(after > before for (_, before), (_, after) in pairwise(points))
