"""The roles of a partition: what a leader and a follower know beside their log.

`LeaderRole` has the followers' progress, the high watermark, and changes of the ISR. The leader proposes a
change of the ISR, and the change counts only after a compare-and-set has written it to the metadata store.
Until then, the high watermark counts the larger set, so no record is acknowledged too early, whatever the
outcome. There is at most one change at a time. Sources: KIP-497, KIP-903, KIP-966; Kafka's `Partition`,
`Replica` and `ReplicaState`.

`truncation_for` decides where a follower truncates its log so that it agrees with the leader's. A log agrees
with the leader's up to the lower of the offsets at which the newest epoch in both logs ends. The high
watermark cannot be used, because it may be below what was acknowledged (KIP-101, KIP-279, KIP-320).

`RefusedBatches` remembers batches of idempotent producers that were refused for a temporary reason. A client
has several batches in flight. The first can arrive while this broker does not lead yet, and the second when
it leads. Then the second follows a gap. On OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka takes a new producer
epoch and sends batches again that may be stored already, which makes duplicates. This broker caused the gap,
so it refuses the second batch with the error of the first, and the client sends both again in order
(docs/adr/0013). This refuses more batches than Kafka does, and accepts no others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from tidelog.broker.partition.events import FollowerFetched, ProposeIsr
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.log_format.leader_epochs import UNDEFINED_EPOCH, LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from tidelog.records.batch import BatchHeader

JOIN_RETRY_MS: Final = 1000
NEVER_MS: Final = MonotonicMs(-1)
MAX_PRODUCERS: Final = 1_000
MEMORY_MS: Final = 5_000
"""Within this time, all batches arrive that were in flight when the refusal was sent."""
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF_OF_ALL_SEQUENCES: Final = 1 << 30


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


class FetchState(Enum):
    """While TRUNCATING, the log may have batches that the leader's log has not, so nothing is appended."""

    NONE = "none"
    TRUNCATING = "truncating"
    FETCHING = "fetching"


class Truncation(NamedTuple):
    """The offset at which to truncate. If not `is_final`, the follower then asks about its newest epoch
    again.
    """

    offset: int
    is_final: bool


def truncation_for(
    epochs: LeaderEpochs, log_end_offset: int, log_start_offset: int, leaders_epoch: int, leaders_end: int
) -> Truncation:
    """Returns the truncation that follows from the leader's answer.

    The answer states that `leaders_epoch`, the largest epoch not above the requested one, ends at
    `leaders_end` (Kafka's `AbstractFetcherThread.getOffsetTruncationState`).
    """
    if leaders_epoch == UNDEFINED_EPOCH:
        # The leader has no epoch up to the requested one: try the next lower epoch.
        latest = epochs.latest
        start = log_start_offset if latest is None else max(latest.start_offset, log_start_offset)
        return Truncation(min(start, log_end_offset), is_final=start <= log_start_offset)
    own_epoch, own_end = epochs.end_offset_for(leaders_epoch, log_end_offset)
    if own_epoch == UNDEFINED_EPOCH:  # The leader's epoch is newer than all epochs here.
        return Truncation(min(leaders_end, log_end_offset), is_final=True)
    offset = min(own_end, leaders_end, log_end_offset)
    return Truncation(offset, is_final=own_epoch == leaders_epoch)


class _Refusal(NamedTuple):
    producer_epoch: int
    base_sequence: int
    error: ErrorCode
    until_ms: int


class RefusedBatches:
    """The refusals of one partition.

    Each producer has at most one, that of the earliest batch that it has to send again.
    """

    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: OrderedDict[int, _Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, header: BatchHeader, error: ErrorCode, now_ms: WallMs) -> None:
        """Records the refusal of a batch that the client will send again."""
        if self._refusal_before(header, now_ms) is None:
            refusal = _Refusal(header.producer_epoch, header.base_sequence, error, now_ms + MEMORY_MS)
            self._refusals[header.producer_id] = refusal
            self._refusals.move_to_end(header.producer_id)
            if len(self._refusals) > MAX_PRODUCERS:
                self._refusals.popitem(last=False)

    def reason_to_refuse(self, header: BatchHeader, now_ms: WallMs) -> ErrorCode | None:
        """Returns the error of an earlier batch of this producer that has not been sent again yet."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None:
            return None
        earlier = self._refusal_before(header, now_ms)
        if earlier is not None:
            return earlier.error
        if header.base_sequence == refusal.base_sequence or header.producer_epoch != refusal.producer_epoch:
            # The batch has been sent again, or the producer has a new epoch. (`_refusal_before` may have
            # removed the refusal already.)
            self._refusals.pop(header.producer_id, None)
        return None

    def _refusal_before(self, header: BatchHeader, now_ms: WallMs) -> _Refusal | None:
        """Returns the producer's refusal if `header` is of a batch after the refused one."""
        refusal = self._refusals.get(header.producer_id)
        if refusal is None or refusal.producer_epoch != header.producer_epoch:
            return None
        if not 0 <= refusal.until_ms - now_ms <= MEMORY_MS:  # it is over, or the clock was set back
            del self._refusals[header.producer_id]
            return None
        ahead = (header.base_sequence - refusal.base_sequence) & _SEQUENCE_MASK
        return refusal if 0 < ahead < _HALF_OF_ALL_SEQUENCES else None
