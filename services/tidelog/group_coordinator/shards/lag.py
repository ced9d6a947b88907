"""How far groups are behind: looked up every few seconds, without reading a record.

A leader tells where its partition's log begins and ends, and by its time index when the record at the
committed offset came. Records of transactions that are still open don't count: nobody can read them yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.shared import Group
from tidelog.group_coordinator.metrics import GroupLag, GroupSummary, ShardLoads, TransactionsSummary
from tidelog.group_coordinator.shards.offset_questions import Position
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime
from tidelog.group_coordinator.shards.shard import Cancellable, ShardState
from tidelog.group_coordinator.transactions.transaction import PREPARED, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets

INTERVAL_MS: Final = 5_000
MAX_POSITIONS: Final = 200_000
"""Looked up at a time; groups beyond are left out."""

CoreT = TypeVar("CoreT", bound=GroupCore | TransactionCore)


class LagReporter:
    """A CoordinatorView: what `start` looks up from time to time."""

    def __init__(self, runtime: CoordinatorRuntime) -> None:
        self._runtime = runtime
        self._lags: Sequence[GroupLag] = ()
        self._groups: Sequence[GroupSummary] = ()
        self._transactions = TransactionsSummary()
        self._next: Cancellable | None = None
        self._is_stopped = False

    def start(self) -> None:
        """On the loop."""
        self._look()

    def stop(self) -> None:
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    @property
    def lags(self) -> Sequence[GroupLag]:
        return self._lags

    @property
    def groups(self) -> Sequence[GroupSummary]:
        return self._groups

    @property
    def transactions(self) -> TransactionsSummary:
        return self._transactions

    @property
    def shard_loads(self) -> Sequence[ShardLoads]:
        counts = self._runtime.counts
        return [
            ShardLoads(kind.value, counts.loads[kind], counts.longest_load_ms[kind], counts.lost[kind])
            for kind in ShardKind
        ]

    @property
    def broker_session_count(self) -> int:
        return sum(1 for _ in self._runtime.sessions)

    @property
    def ended_transactions(self) -> tuple[int, int]:
        ended = self._runtime.counts.ended
        return ended[True], ended[False]

    @property
    def ending_transaction_count(self) -> int:
        return self._runtime.markers.ending_count

    def now_ms(self) -> int:
        return self._runtime.now_ms()

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        shards = list(self._runtime.shards.values())
        return Counter((shard.shard_id.kind.value, shard.state.value) for shard in shards)

    def _look(self) -> None:
        if self._is_stopped:
            return
        self._next = self._runtime.call_after(self._look, INTERVAL_MS)
        committed: list[tuple[str, TopicPartition, int]] = []
        groups: list[GroupSummary] = []
        for core in self._serving(GroupCore):
            groups += [standing_of(group) for group in core.groups.by_id.values()]
            for key, offset in core.offsets.committed_offsets():
                if len(committed) < MAX_POSITIONS:
                    committed.append((key.group_id, key.topic_partition, offset.offset))
        self._groups = groups
        self._transactions = transactions_of(self._serving(TransactionCore))
        asked: list[Position] = list({(partition, offset) for _, partition, offset in committed})
        self._runtime.offset_questions.ask(asked, lambda found: self._told(committed, found))

    def _serving(self, kind: type[CoreT]) -> Iterator[CoreT]:
        for shard in self._runtime.shards.values():
            core = shard.core
            if shard.state is ShardState.SERVING and isinstance(core, kind):
                yield core

    def _told(
        self,
        committed: Sequence[tuple[str, TopicPartition, int]],
        found: Mapping[Position, PartitionOffsets],
    ) -> None:
        now_ms = self._runtime.now_ms()
        lags = []
        for group, partition, offset in committed:
            offsets = found.get((partition, offset))
            if offsets is not None:
                lags.append(lag_of(group, partition, offset, offsets, now_ms))
        self._lags = lags


def standing_of(group: Group) -> GroupSummary:
    listed = group.listed()
    return GroupSummary(
        group.group_id, listed.group_type, listed.group_state, group.member_count(), group.generation_or_epoch
    )


def transactions_of(cores: Iterable[TransactionCore]) -> TransactionsSummary:
    """Every state is counted, if with 0."""
    counts = {status.kafka_name: 0 for status in TransactionStatus}
    open_ms: list[int] = []
    ending_ms: list[int] = []
    for core in cores:
        for transaction in core.transactions.values():
            counts[transaction.status.kafka_name] += 1
            if transaction.status is TransactionStatus.ONGOING and transaction.start_ms >= 0:
                open_ms.append(transaction.start_ms)
            elif transaction.status in PREPARED:
                ending_ms.append(transaction.update_ms)
    return TransactionsSummary(counts, min(open_ms, default=None), min(ending_ms, default=None))


def lag_of(
    group: str, partition: TopicPartition, offset: int, offsets: PartitionOffsets, now_ms: int
) -> GroupLag:
    """What was deleted before it was read doesn't count; what can't be read yet neither. A record may be
    deleted when it is `retention.ms` old; it stays longer if younger ones lie in its segment.
    """
    lag = max(0, offsets.last_stable_offset - max(offset, offsets.log_start_offset))
    first_unread_ms = offsets.first_unread_timestamp_ms
    is_timed = lag > 0 and first_unread_ms >= 0
    seconds = max(0, now_ms - first_unread_ms) / 1000 if is_timed else 0.0
    expires_s = None
    if is_timed and offsets.retention_ms >= 0:
        expires_s = max(0, first_unread_ms + offsets.retention_ms - now_ms) / 1000
    return GroupLag(group, partition.topic, partition.partition, offset, lag, seconds, expires_s)
