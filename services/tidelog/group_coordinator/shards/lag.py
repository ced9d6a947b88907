"""The lag of groups, which the coordinator determines every few seconds without reading records.

The leader of a partition reports where its log begins and ends, and from its time index the timestamp of the
record at the committed offset. A read_committed consumer can read up to the last stable offset, and a
read_uncommitted one up to the high watermark. While a transaction is open, the two lags differ.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

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
from tidelog.group_coordinator.shards.broker_calls import OffsetQuestions, Position
from tidelog.group_coordinator.shards.runner import CoordinatorRuntime
from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer, ShardState
from tidelog.group_coordinator.transactions.transaction import PREPARED, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import WallMs
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets

INTERVAL_MS: Final = 5_000
MAX_POSITIONS: Final = 200_000
"""The most positions of one lookup. The lag of further positions is not reported."""
POSITIONS_OF_A_QUESTION: Final = 1_000
"""The positions that the leaders are asked about in one turn of the event loop."""

Committed = tuple[str, TopicPartition, int]
"""A group, a partition and the offset that the group has committed for it."""
CoreT = TypeVar("CoreT", bound=GroupCore | TransactionCore)


class _Lookup(NamedTuple):
    """The result of one lookup."""

    committed: Sequence[Committed] = ()
    found: Mapping[Position, PartitionOffsets] = {}
    ended_ms: WallMs = WallMs(0)


class LagReporter:
    """The CoordinatorView that metrics show. `start` begins the lookups.

    A lookup may concern many positions. It is therefore a task that works in slices, and the lags themselves
    are computed in the thread that reads them.
    """

    def __init__(
        self, runtime: CoordinatorRuntime, questions: OffsetQuestions, clock: Clock, timer: DelayTimer
    ) -> None:
        self._runtime = runtime
        self._questions = questions
        self._clock = clock
        self._timer = timer
        self._last = _Lookup()
        self._groups: Sequence[GroupSummary] = ()
        self._transactions = TransactionsSummary()
        self._next: Cancellable | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins the lookups. Must be called on the event loop."""
        self._next = self._timer.add_after(self.start, INTERVAL_MS)
        if self._task is None or self._task.done():  # an earlier lookup may still wait for a leader
            self._task = asyncio.get_running_loop().create_task(self._look_up(), name="lag of groups")

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._task is not None:
            self._task.cancel()

    @property
    def lags(self) -> Sequence[GroupLag]:
        committed, found, ended_ms = self._last
        return [
            lag_of(group, partition, offset, offsets, ended_ms)
            for group, partition, offset in committed
            if (offsets := found.get((partition, offset))) is not None
        ]

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
        return self._runtime.calls.markers.ending_count

    def now_ms(self) -> WallMs:
        return self._clock.wall_ms()

    @property
    def shard_counts(self) -> Mapping[tuple[str, str], int]:
        shards = list(self._runtime.shards.values())
        return Counter((shard.shard_id.kind.value, shard.state.value) for shard in shards)

    async def _look_up(self) -> None:
        committed, groups = await run_in_slices(self._committed())
        self._groups = groups
        self._transactions = transactions_of(self._serving(TransactionCore))
        asked = await run_in_slices(_positions(committed))
        told: list[asyncio.Future[Mapping[Position, PartitionOffsets]]] = []
        for start in range(0, len(asked), POSITIONS_OF_A_QUESTION):
            told.append(self._ask(asked[start : start + POSITIONS_OF_A_QUESTION]))
            await asyncio.sleep(0)
        found: dict[Position, PartitionOffsets] = {}
        for answer in told:
            found.update(await answer)
        self._last = _Lookup(committed, found, self._clock.wall_ms())

    def _committed(self) -> Steps[tuple[list[Committed], list[GroupSummary]]]:
        committed: list[Committed] = []
        groups: list[GroupSummary] = []
        for core in list(self._serving(GroupCore)):
            for group in list(core.groups.by_id.values()):
                groups.append(summary_of(group))
                yield
            for key, offset in core.offsets.committed_offsets():
                if len(committed) < MAX_POSITIONS:
                    committed.append((key.group_id, key.topic_partition, offset.offset))
                yield
        return committed, groups

    def _ask(self, positions: Sequence[Position]) -> asyncio.Future[Mapping[Position, PartitionOffsets]]:
        answer: asyncio.Future[Mapping[Position, PartitionOffsets]]
        answer = asyncio.get_running_loop().create_future()

        def told(found: Mapping[Position, PartitionOffsets]) -> None:
            if not answer.done():  # not cancelled
                answer.set_result(found)

        self._questions.ask_for_lag(positions, told)
        return answer

    def _serving(self, kind: type[CoreT]) -> Iterator[CoreT]:
        for shard in self._runtime.shards.values():
            core = shard.core
            if shard.state is ShardState.SERVING and isinstance(core, kind):
                yield core


def _positions(committed: Iterable[Committed]) -> Steps[list[Position]]:
    """Returns the different positions."""
    positions: dict[Position, None] = {}
    for _, partition, offset in committed:
        positions[partition, offset] = None
        yield
    return list(positions)


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

    Deleted records do not count. The lag is negative if the committed offset is beyond the end of the log.
    Retention may delete a record when it is `retention.ms` old, but the record stays longer if its segment
    has newer records.
    """
    first_unread = max(offset, offsets.log_start_offset)
    to_high_watermark = offsets.high_watermark - first_unread
    lag = min(to_high_watermark, max(0, offsets.last_stable_offset - first_unread))
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
