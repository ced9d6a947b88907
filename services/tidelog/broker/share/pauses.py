"""The circuit breaker of a share partition: it pauses deliveries while too many of them fail (ADR 0053)."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from tidelog.broker.share.record_ranges import NO_DEADLINE
from tidelog.kernel.instants import Backoff, MonotonicMs
from tidelog.kernel.machine import StateTable

WINDOW_PARTS: Final = 10
"""The window of the failure rate moves on by this part of itself."""


NO_BACKOFF: Final = Backoff(0, 0)
"""The pauses between two deliveries of a record if the group has none, as in Kafka."""


class BreakerRules(NamedTuple):
    """The rules of a group. With a `failure_percentage` of 0, there is no breaker."""

    failure_percentage: int
    min_deliveries: int
    """The fewest ended deliveries in the window that may open the breaker."""
    window_ms: int
    pause_ms: int
    probe_records: int
    """The number of deliveries after a pause that must succeed."""


NO_BREAKER: Final = BreakerRules(0, 1, 1, 1, 1)


class BreakerState(Enum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    """Records are delivered, and their results are counted."""
    OPEN = "open"
    """No record is delivered until the pause ends."""
    HALF_OPEN = "half-open"
    """A few records are delivered, and their results decide."""


STATES: Final = StateTable(
    "a breaker",
    {
        BreakerState.CLOSED: {BreakerState.OPEN},
        BreakerState.OPEN: {BreakerState.HALF_OPEN, BreakerState.CLOSED},
        BreakerState.HALF_OPEN: {BreakerState.OPEN, BreakerState.CLOSED},
    },
)
"""The life of a breaker. An open one closes if the group has no breaker any more."""


class Breaker:
    """The breaker of one share partition. It begins open if `paused_until_ms` is a time."""

    __slots__ = ("_counts", "_succeeded_probes", "paused_until_ms", "state")

    def __init__(self, paused_until_ms: MonotonicMs = NO_DEADLINE) -> None:
        self.state = BreakerState.CLOSED if paused_until_ms == NO_DEADLINE else BreakerState.OPEN
        self.paused_until_ms = paused_until_ms
        """The end of the pause. A half-open breaker keeps it, so that a later leader is half-open, too."""
        self._counts: deque[list[int]] = deque()
        """[part of the window, successes, failures] for each part with results, the oldest first."""
        self._succeeded_probes = 0

    def _enter(self, state: BreakerState, paused_until_ms: MonotonicMs) -> None:
        self.state = STATES.enter(self.state, state)
        self.paused_until_ms = paused_until_ms
        self._counts.clear()
        self._succeeded_probes = 0

    def allowed_probes(self, in_flight: int, rules: BreakerRules) -> int | None:
        """Returns how many records may be delivered now, if members have `in_flight` records. Returns None if
        the breaker sets no limit.
        """
        if self.state is BreakerState.CLOSED or not rules.failure_percentage:
            return None
        if self.state is BreakerState.OPEN:
            return 0
        return max(rules.probe_records - self._succeeded_probes - in_flight, 0)

    def tick(self, now_ms: MonotonicMs, rules: BreakerRules) -> bool:
        """Ends a pause whose time is over. Returns whether records may be delivered that might not before."""
        if self.state is BreakerState.CLOSED:
            return False
        if not rules.failure_percentage:
            self._enter(BreakerState.CLOSED, NO_DEADLINE)
            return True
        if self.state is BreakerState.HALF_OPEN or now_ms < self.paused_until_ms:
            return False
        self._enter(BreakerState.HALF_OPEN, self.paused_until_ms)
        return True

    def ended(self, successes: int, failures: int, now_ms: MonotonicMs, rules: BreakerRules) -> bool:
        """Counts deliveries that have ended. Returns whether the end of the pause has changed, which is the
        part of the breaker that is stored. While the breaker is open, late results do not count.
        """
        if not rules.failure_percentage or not successes + failures:
            return False
        if self.state is BreakerState.CLOSED:
            if not self._is_too_bad(successes, failures, now_ms, rules):
                return False
            self._open(now_ms, rules)
            return True
        if self.state is BreakerState.OPEN:
            return False
        self._succeeded_probes += successes
        if failures:
            self._open(now_ms, rules)
            return True
        if self._succeeded_probes < rules.probe_records:
            return False
        self._enter(BreakerState.CLOSED, NO_DEADLINE)
        return True

    def _open(self, now_ms: MonotonicMs, rules: BreakerRules) -> None:
        self._enter(BreakerState.OPEN, MonotonicMs(now_ms + rules.pause_ms))

    def _is_too_bad(self, successes: int, failures: int, now_ms: MonotonicMs, rules: BreakerRules) -> bool:
        part = now_ms * WINDOW_PARTS // rules.window_ms
        counts = self._counts
        while counts and counts[0][0] <= part - WINDOW_PARTS:
            counts.popleft()
        if not counts or counts[-1][0] != part:
            counts.append([part, 0, 0])
        counts[-1][1] += successes
        counts[-1][2] += failures
        failed = sum(found[2] for found in counts)
        total = failed + sum(found[1] for found in counts)
        return total >= rules.min_deliveries and failed * 100 >= rules.failure_percentage * total
