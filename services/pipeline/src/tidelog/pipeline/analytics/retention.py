"""When retention takes what a group has not read: by time as the coordinator tells it, by the log's start
as it moves (retention by size, or by time where nobody tells). No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.pipeline.analytics.lag import LagTrend
from tidelog.pipeline.analytics.series import Point, after_last_fall, latest, trend

LOST: Final = "lost"
"""Records went that had not been read."""
AT_RISK: Final = "at risk"
"""As things go, records go before they are read."""
SAFE: Final = "safe"
UNKNOWN: Final = "unknown"
VERDICTS: Final = (LOST, AT_RISK, SAFE, UNKNOWN)
"""The worst first."""
_FEWEST_MOVES: Final = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """`expires_s`: until the first unread record may go by time. `by_time_s`, `by_offset_s`: until one goes
    unread, as things go; None: not as things go, or nobody knows. `lost`: records gone unread in the history.
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
    """Of one group and partition. `starts`: the log's start; `expires`: seconds that the first unread
    record is safe for. All are sorted; any may be empty.
    """
    lost = lost_records(committed, starts)
    margin = committed[-1][1] - starts[-1][1] if committed and starts else None
    is_told = bool(expires) and expires[-1][0] >= lag.last_ms
    expires_s = expires[-1][1] if is_told else None
    by_time_s = _until_zero(latest(expires, window_ms)) if is_told and lag.lag else None
    by_offset_s = _overtaken_in_s(committed, starts, window_ms) if lag.lag else None
    if lag.lag == 0:
        verdict = SAFE
    elif by_time_s is not None or by_offset_s is not None:
        soonest_s = min(s for s in (by_time_s, by_offset_s) if s is not None)
        verdict = SAFE if lag.drain_s is not None and lag.drain_s <= soonest_s else AT_RISK
    else:
        # Nothing moves towards a loss; whether anything could is known only of what was told.
        verdict = SAFE if is_told or _moves(starts) else UNKNOWN
    return Forecast(LOST if lost else verdict, lost, lag.lag, margin, expires_s, by_time_s, by_offset_s)


def lost_records(committed: Sequence[Point], starts: Sequence[Point]) -> int:
    """How far the log's start went beyond the committed offset, summed over each time that it did."""
    lost = 0.0
    index = 0
    reached: float | None = None
    for at_ms, start in starts:
        while index + 1 < len(committed) and committed[index + 1][0] <= at_ms:
            index += 1
        if not committed or committed[index][0] > at_ms:
            continue
        position = committed[index][1]
        # What was counted lost already isn't again, while the group stays where it was.
        position = position if reached is None else max(position, reached)
        if start > position:
            lost += start - position
            reached = start
    return int(lost)


def _until_zero(points: Sequence[Point]) -> float | None:
    """0 is reached in, if it goes on like this."""
    if not points:
        return None
    last = points[-1][1]
    if last <= 0:
        return 0.0
    falls = trend(points)
    # With too few samples to tell, the group is taken to stand still.
    per_s = -1.0 if falls is None else falls.per_s
    return None if per_s >= 0 else last / -per_s


def _overtaken_in_s(committed: Sequence[Point], starts: Sequence[Point], window_ms: int) -> float | None:
    """When the log's start reaches the committed offset, if both go on like this."""
    starts = latest(after_last_fall(starts), window_ms)
    committed = latest(after_last_fall(committed), window_ms)
    # The start moves by whole segments: a line needs some steps.
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
