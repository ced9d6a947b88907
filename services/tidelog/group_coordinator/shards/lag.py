"""The lag of groups, which the coordinator determines every few seconds without reading records.

The leader of a partition reports where its log begins and ends, and from its time index the timestamp of the
record at the committed offset. A read_committed consumer can read up to the last stable offset, and a
read_uncommitted one up to the high watermark. While a transaction is open, the two lags differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.shared import Group
from tidelog.group_coordinator.groups.streams.streams_group import StreamsGroup
from tidelog.group_coordinator.metrics import (
    GroupLag,
    GroupSummary,
    ShardLoads,
    TransactionsSummary,
    UncommittedLag,
)
from tidelog.group_coordinator.shards.offset_questions import OffsetQuestions, Position
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer, ShardState
from tidelog.group_coordinator.transactions.transaction import PREPARED, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets
from tidelog.timing.clock import Clock

INTERVAL_MS: Final = 5_000
MAX_POSITIONS: Final = 200_000
"""The most positions of one lookup. The lag of further positions is not reported."""

CoreT = TypeVar("CoreT", bound=GroupCore | TransactionCore)


class LagReporter:
    """The CoordinatorView that metrics show. `start` begins the lookups."""

    def __init__(
        self, runtime: CoordinatorRuntime, questions: OffsetQuestions, clock: Clock, timer: DelayTimer
    ) -> None:
        self._runtime = runtime
        self._questions = questions
        self._clock = clock
        self._timer = timer
        self._lags: Sequence[GroupLag] = ()
        self._groups: Sequence[GroupSummary] = ()
        self._transactions = TransactionsSummary()
        self._next: Cancellable | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Begins the lookups. Must be called on the event loop."""
        self._look_up()

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

    def now_ms(self) -> WallMs:
        return self._clock.wall_ms()

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        shards = list(self._runtime.shards.values())
        return Counter((shard.shard_id.kind.value, shard.state.value) for shard in shards)

    def _look_up(self) -> None:
        if self._is_stopped:
            return
        self._next = self._timer.add_after(self._look_up, INTERVAL_MS)
        committed: list[tuple[str, TopicPartition, int]] = []
        groups: list[GroupSummary] = []
        for core in self._serving(GroupCore):
            groups += [summary_of(group) for group in core.groups.by_id.values()]
            for key, offset in core.offsets.committed_offsets():
                if len(committed) < MAX_POSITIONS:
                    committed.append((key.group_id, key.topic_partition, offset.offset))
        self._groups = groups
        self._transactions = transactions_of(self._serving(TransactionCore))
        asked: list[Position] = list({(partition, offset) for _, partition, offset in committed})
        self._questions.ask(asked, lambda found: self._set_lags(committed, found))

    def _serving(self, kind: type[CoreT]) -> Iterator[CoreT]:
        for shard in self._runtime.shards.values():
            core = shard.core
            if shard.state is ShardState.SERVING and isinstance(core, kind):
                yield core

    def _set_lags(
        self,
        committed: Sequence[tuple[str, TopicPartition, int]],
        found: Mapping[Position, PartitionOffsets],
    ) -> None:
        now_ms = self._clock.wall_ms()
        lags = []
        for group, partition, offset in committed:
            offsets = found.get((partition, offset))
            if offsets is not None:
                lags.append(lag_of(group, partition, offset, offsets, now_ms))
        self._lags = lags


def summary_of(group: Group) -> GroupSummary:
    listed = group.listed()
    return GroupSummary(
        group.group_id,
        listed.group_type,
        listed.group_state,
        group.member_count(),
        group.generation_or_epoch,
        group.task_counts() if isinstance(group, StreamsGroup) else None,
    )


def transactions_of(cores: Iterable[TransactionCore]) -> TransactionsSummary:
    """Returns the number of transactions in every state, including states without a transaction."""
    counts = {status.kafka_name: 0 for status in TransactionStatus}
    open_ms: list[WallMs] = []
    ending_ms: list[WallMs] = []
    for core in cores:
        for transaction in core.transactions.values():
            counts[transaction.status.kafka_name] += 1
            if transaction.status is TransactionStatus.ONGOING and transaction.start_ms >= 0:
                open_ms.append(transaction.start_ms)
            elif transaction.status in PREPARED:
                ending_ms.append(transaction.update_ms)
    return TransactionsSummary(counts, min(open_ms, default=None), min(ending_ms, default=None))


def lag_of(
    group: str, partition: TopicPartition, offset: int, offsets: PartitionOffsets, now_ms: WallMs
) -> GroupLag:
    """Returns the lag of a group in one partition.

    Deleted records do not count. Retention may delete a record when it is
    `retention.ms` old, but the record stays longer if its segment has newer records.
    """
    first_unread = max(offset, offsets.log_start_offset)
    lag = max(0, offsets.last_stable_offset - first_unread)
    to_high_watermark = max(0, offsets.high_watermark - first_unread)
    first_unread_ms = offsets.first_unread_timestamp_ms
    age_s = max(0, now_ms - first_unread_ms) / 1000 if first_unread_ms >= 0 else 0.0
    expires_s = None
    if lag > 0 and first_unread_ms >= 0 and offsets.retention_ms >= 0:
        expires_s = max(0, first_unread_ms + offsets.retention_ms - now_ms) / 1000
    return GroupLag(
        group,
        partition.topic,
        partition.partition,
        offset,
        lag,
        age_s if lag > 0 else 0.0,
        expires_s,
        UncommittedLag(to_high_watermark, age_s) if to_high_watermark != lag else None,
    )
