"""The leader's side of replication: followers' progress, the high watermark, and changes of the ISR.

The leader proposes a change of the ISR, and the change counts only after a compare-and-set has written it to
the metadata store. Until then, the high watermark counts the larger set, so no record is acknowledged too
early, whatever the outcome. There is at most one change at a time. Sources: KIP-497, KIP-903, KIP-966;
Kafka's `Partition`, `Replica` and `ReplicaState`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.broker.partition.events import FollowerFetched, ProposeIsr
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.protocol_values import UNKNOWN_EPOCH, UNKNOWN_OFFSET

JOIN_RETRY_MS: Final = 1000
NEVER_MS: Final = MonotonicMs(-1)


class FollowerProgress:
    """The progress of one follower, and the time at which it was last in sync.

    The leader learns this from the follower's fetches only. `log_end_offset` is -1 until the first fetch.
    """

    __slots__ = (
        "_leader_end_at_last_fetch",
        "broker_epoch",
        "last_caught_up_ms",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "may_join_from_ms",
    )

    def __init__(self, *, last_caught_up_ms: MonotonicMs = NEVER_MS) -> None:
        self.broker_epoch = UNKNOWN_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_ms = NEVER_MS
        self.last_caught_up_ms = last_caught_up_ms
        self.may_join_from_ms = NEVER_MS
        self._leader_end_at_last_fetch = UNKNOWN_OFFSET

    def fetched(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: MonotonicMs
    ) -> None:
        """Records a fetch. The follower has everything below `fetch_offset`.

        If the follower now has all that the leader had at the previous fetch, it was caught up at that time.
        So a follower that reads as fast as a busy leader writes counts as in sync, although it never reaches
        the end.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self._leader_end_at_last_fetch and self.last_fetch_ms != NEVER_MS:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_ms = now_ms
        self._leader_end_at_last_fetch = leader_end_offset

    def is_in_sync(
        self, leader_end_offset: int, now_ms: MonotonicMs, max_lag_ms: int, max_lag: int | None
    ) -> bool:
        """Returns whether the follower is caught up or was so within `max_lag_ms`.

        `max_lag_ms` is `replica.lag.time.max.ms`. With `max_lag` (`replica.lag.max.messages`), a follower
        that is more than that many records behind is not in sync either.
        """
        if self.log_end_offset == leader_end_offset:
            return True
        if max_lag is not None and leader_end_offset - self.log_end_offset > max_lag:
            return False
        return now_ms - self.last_caught_up_ms <= max_lag_ms


class LeaderRole:
    """The state of one leader epoch. The next election creates a new instance."""

    __slots__ = ("_leader_id", "epoch_start_offset", "followers", "pending")

    def __init__(self, leader_id: int, epoch_start_offset: int) -> None:
        self._leader_id = leader_id
        self.epoch_start_offset = epoch_start_offset
        self.followers: dict[int, FollowerProgress] = {}
        self.pending: ProposeIsr | None = None

    def keep_to(
        self, replicas: tuple[int, ...], in_sync_replicas: tuple[int, ...], now_ms: MonotonicMs
    ) -> None:
        """Sets the followers. A new follower in the ISR counts as caught up now, so that it has time to
        fetch.
        """
        for replica in replicas:
            if replica != self._leader_id and replica not in self.followers:
                is_in_sync = replica in in_sync_replicas
                progress = FollowerProgress(last_caught_up_ms=now_ms) if is_in_sync else FollowerProgress()
                self.followers[replica] = progress
        for replica in self.followers.keys() - set(replicas):
            del self.followers[replica]

    def follower_fetched(self, event: FollowerFetched, log_end_offset: int) -> bool:
        """Takes a follower's fetch into account.

        Returns False for a broker that is no follower, and for a fetch from an earlier life of the broker.
        """
        progress = self.followers.get(event.replica_id)
        if progress is None or event.broker_epoch < progress.broker_epoch:
            return False
        progress.broker_epoch = event.broker_epoch
        progress.fetched(event.fetch_offset, event.log_start_offset, log_end_offset, event.monotonic_ms)
        return True

    def log_start_offset_of(self, replica: int) -> int:
        """Returns where a follower's log begins, -1 if the leader does not know."""
        progress = self.followers.get(replica)
        return -1 if progress is None else progress.log_start_offset

    # -- offsets

    def least_end_offset(self, in_sync_replicas: tuple[int, ...], log_end_offset: int) -> int:
        """Returns the offset below which every replica of the ISR has all records.

        Replicas whose join is pending count too. The result is -1 if one of them has not fetched yet.
        """
        least = log_end_offset
        followers = self.followers
        for replica in in_sync_replicas:
            if replica != self._leader_id:
                progress = followers.get(replica)
                least = min(least, -1 if progress is None else progress.log_end_offset)
        if self.pending is not None:
            for replica, _ in self.pending.added:
                progress = followers.get(replica)
                least = min(least, -1 if progress is None else progress.log_end_offset)
        return least

    def low_watermark(self, log_start_offset: int) -> int:
        """Returns the least log start offset of all replicas, -1 if one of them has not fetched yet."""
        return min([log_start_offset, *(p.log_start_offset for p in self.followers.values())])

    # -- the ISR

    def may_join(
        self, replica: int, in_sync_replicas: tuple[int, ...], high_watermark: int, now_ms: MonotonicMs
    ) -> bool:
        """Returns whether this follower may join the ISR.

        It must have everything below the high watermark and below the start of this leader epoch.
        """
        if self.pending is not None or replica in in_sync_replicas:
            return False
        progress = self.followers[replica]
        return (
            progress.log_end_offset >= high_watermark
            and progress.log_end_offset >= self.epoch_start_offset
            and now_ms >= progress.may_join_from_ms
        )

    def join_refused(self, proposal: ProposeIsr, now_ms: MonotonicMs) -> None:
        """Delays the next attempt of the brokers that the proposal added.

        The store has another broker epoch for them than they fetch with. Without a delay, each fetch would
        cause a proposal.
        """
        for replica, _ in proposal.added:
            if replica in self.followers:
                self.followers[replica].may_join_from_ms = MonotonicMs(now_ms + JOIN_RETRY_MS)

    def laggards(
        self,
        in_sync_replicas: tuple[int, ...],
        log_end_offset: int,
        now_ms: MonotonicMs,
        max_lag_ms: int,
        max_lag: int | None,
    ) -> set[int]:
        """Returns the replicas to remove from the ISR; none while a change is pending."""
        if self.pending is not None:
            return set()
        return {
            replica
            for replica in in_sync_replicas
            if replica in self.followers
            and not self.followers[replica].is_in_sync(log_end_offset, now_ms, max_lag_ms, max_lag)
        }


def eligible_after(
    in_sync_replicas: tuple[int, ...],
    leaving: Iterable[int],
    eligible: tuple[int, ...],
    effective_min_in_sync_replicas: int,
) -> tuple[int, ...]:
    """Returns the eligible leader replicas (KIP-966) that belong to a new ISR.

    While the ISR is below its minimum, the high watermark does not advance. So a replica that has left
    since then still has everything that was acknowledged.
    """
    if len(in_sync_replicas) >= effective_min_in_sync_replicas:
        return ()
    return tuple(sorted({*eligible, *leaving} - set(in_sync_replicas)))
