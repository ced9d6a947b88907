"""The leader's side of replication: followers' progress, the high watermark, and changes of the ISR.

A change of the ISR is proposed, written to the metadata store by a compare-and-set, and counts only then.
While it is under way the high watermark counts the larger set, so whichever way it ends nothing was
acknowledged too early. One change at a time. SPEC C2-C4, C13; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.broker.partition.events import FollowerFetched, ProposeIsr
from tidelog.broker.partition.follower_progress import FollowerProgress

JOIN_RETRY_MS: Final = 1000


class LeaderRole:
    """From one election to the next; a new leader epoch begins with a new one."""

    __slots__ = ("_leader_id", "epoch_start_offset", "followers", "pending")

    def __init__(self, leader_id: int, epoch_start_offset: int) -> None:
        self._leader_id = leader_id
        self.epoch_start_offset = epoch_start_offset
        self.followers: dict[int, FollowerProgress] = {}
        self.pending: ProposeIsr | None = None

    def keep_to(self, replicas: tuple[int, ...], in_sync_replicas: tuple[int, ...], now_ms: int) -> None:
        """Who the followers are. One that is in the ISR is given the time to fetch from the new leader."""
        for replica in replicas:
            if replica != self._leader_id and replica not in self.followers:
                is_in_sync = replica in in_sync_replicas
                progress = FollowerProgress(last_caught_up_ms=now_ms) if is_in_sync else FollowerProgress()
                self.followers[replica] = progress
        for replica in self.followers.keys() - set(replicas):
            del self.followers[replica]

    def follower_fetched(self, event: FollowerFetched, log_end_offset: int, now_ms: int) -> bool:
        """False if it is of nobody who replicates from here, or of a life of the follower that is over."""
        progress = self.followers.get(event.replica_id)
        if progress is None or event.broker_epoch < progress.broker_epoch:
            return False
        progress.broker_epoch = event.broker_epoch
        progress.fetched(event.fetch_offset, event.log_start_offset, log_end_offset, now_ms)
        return True

    def log_start_offset_of(self, replica: int) -> int:
        progress = self.followers.get(replica)
        return -1 if progress is None else progress.log_start_offset

    # -- offsets

    def least_end_offset(self, in_sync_replicas: tuple[int, ...], log_end_offset: int) -> int:
        """What every replica of the ISR has, those included whose entry is under way; -1 where one has not
        told yet.
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
        """The least log start offset of the replicas (SPEC B10); -1 while one has not told yet."""
        return min([log_start_offset, *(p.log_start_offset for p in self.followers.values())])

    # -- the ISR

    def may_join(
        self, replica: int, in_sync_replicas: tuple[int, ...], high_watermark: int, now_ms: int
    ) -> bool:
        """Whether this follower may join the ISR: it has all below the high watermark and the beginning of
        this leader's epoch (SPEC C4).
        """
        if self.pending is not None or replica in in_sync_replicas:
            return False
        progress = self.followers[replica]
        return (
            progress.log_end_offset >= high_watermark
            and progress.log_end_offset >= self.epoch_start_offset
            and now_ms >= progress.may_join_from_ms
        )

    def join_refused(self, proposal: ProposeIsr, now_ms: int) -> None:
        """The store holds another epoch of these brokers than they fetch with: don't ask at every fetch."""
        for replica, _ in proposal.added:
            if replica in self.followers:
                self.followers[replica].may_join_from_ms = now_ms + JOIN_RETRY_MS

    def laggards(
        self,
        in_sync_replicas: tuple[int, ...],
        log_end_offset: int,
        now_ms: int,
        max_lag_ms: int,
        max_lag: int | None,
    ) -> set[int]:
        """Who is to leave the ISR; nobody while a change is under way."""
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
    """The eligible leader replicas (KIP-966) that go with a new ISR.

    As long as the ISR is below its minimum the high watermark stands, so whoever left since then still has
    all that was acknowledged.
    """
    if len(in_sync_replicas) >= effective_min_in_sync_replicas:
        return ()
    return tuple(sorted({*eligible, *leaving} - set(in_sync_replicas)))
