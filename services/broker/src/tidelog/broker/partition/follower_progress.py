"""What a leader knows of one follower: how far it has come and when it was last level.

Source: Kafka's `Replica` and `ReplicaState`.
"""

from __future__ import annotations

from typing import Final

UNKNOWN_OFFSET: Final = -1
UNKNOWN_EPOCH: Final = -1
NEVER_MS: Final = -1


class FollowerProgress:
    """Learned from the follower's fetches alone; `log_end_offset` is unknown (-1) until the first."""

    __slots__ = (
        "_leader_end_at_last_fetch",
        "broker_epoch",
        "last_caught_up_ms",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "may_join_from_ms",
    )

    def __init__(self, *, last_caught_up_ms: int = NEVER_MS) -> None:
        self.broker_epoch = UNKNOWN_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = NEVER_MS
        self.last_caught_up_ms = last_caught_up_ms
        self.may_join_from_ms = NEVER_MS
        self._leader_end_at_last_fetch = UNKNOWN_OFFSET

    def fetched(self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """The follower has everything below `fetch_offset`.

        One that has now what the leader had at the fetch before was level at that time: so a follower that
        reads as fast as a busy leader writes counts as in sync although it is never quite at the end.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self._leader_end_at_last_fetch and self.last_fetch_ms != NEVER_MS:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_ms = now_ms
        self._leader_end_at_last_fetch = leader_end_offset

    def is_in_sync(self, leader_end_offset: int, now_ms: int, max_lag_ms: int, max_lag: int | None) -> bool:
        """SPEC C3. Level with the leader, or so within `max_lag_ms` (`replica.lag.time.max.ms`); with
        `max_lag` (`replica.lag.max.messages`) also never more records behind than that.
        """
        if self.log_end_offset == leader_end_offset:
            return True
        if max_lag is not None and leader_end_offset - self.log_end_offset > max_lag:
            return False
        return now_ms - self.last_caught_up_ms <= max_lag_ms
