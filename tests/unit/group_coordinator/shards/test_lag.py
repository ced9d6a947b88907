"""The lag of a group, computed from the offsets that the partition's leader reports."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.group_coordinator.groups.group_core import GroupCore
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.group_coordinator.metrics import TransactionsSummary
from tidelog.group_coordinator.shard_core import ClusterImage, ReplayedRecord
from tidelog.group_coordinator.shards import lag
from tidelog.group_coordinator.shards.broker_calls import (
    MAX_OPEN_CALLS_OF_LAG,
    OffsetQuestions,
    Position,
)
from tidelog.group_coordinator.shards.lag import LagReporter, lag_of, transactions_of
from tidelog.group_coordinator.shards.shard import ShardState
from tidelog.group_coordinator.transactions.transaction import TransactionMetadata, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.kernel.clock import SystemClock
from tidelog.kernel.instants import WallMs
from tidelog.kernel.slices import STEPS_BETWEEN_READINGS, TURNS_OF_OTHERS
from tidelog.kernel.timer import LoopTimer
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import AskOffsets, Item, OffsetsTold, PartitionOffsets
from tidelog.settings.broker_settings import BrokerSettings

NOW_MS = WallMs(1_000_000)


@pytest.mark.parametrize(
    ("committed", "offsets", "lag", "seconds"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), 10, 2.5, id="behind"),
        pytest.param(100, PartitionOffsets(0, 100, 100, -1), 0, 0.0, id="caught up"),
        pytest.param(90, PartitionOffsets(0, 100, 95, NOW_MS - 1_000), 5, 1.0, id="open transaction"),
        pytest.param(95, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), 0, 0.0, id="only an open one"),
        pytest.param(10, PartitionOffsets(40, 100, 100, NOW_MS - 4_000), 60, 4.0, id="deleted before"),
        pytest.param(120, PartitionOffsets(0, 100, 95, -1), -20, 0.0, id="beyond the end"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS + 500), 10, 0.0, id="clock of the producer"),
        pytest.param(90, PartitionOffsets(0, 100, 100, -1), 10, 0.0, id="time unknown"),
    ],
)
def test_lag(committed: int, offsets: PartitionOffsets, lag: int, seconds: float) -> None:
    found = lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS)
    assert found[:7] == ("g", "t", 1, committed, lag, seconds, None)


@pytest.mark.parametrize(
    ("committed", "offsets", "expected"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), None, id="the same"),
        pytest.param(90, PartitionOffsets(0, 100, 95, NOW_MS - 1_000), (10, 1.0), id="open transaction"),
        pytest.param(95, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), (5, 9.0), id="only an open one"),
        pytest.param(97, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), (3, 9.0), id="read beyond it"),
        pytest.param(95, PartitionOffsets(0, 100, 95, -1), (5, 0.0), id="time unknown"),
        pytest.param(100, PartitionOffsets(0, 100, 95, -1), None, id="all read"),
        pytest.param(10, PartitionOffsets(40, 100, 70, NOW_MS), (60, 0.0), id="deleted before"),
    ],
)
def test_the_lag_of_read_uncommitted_consumers(
    committed: int, offsets: PartitionOffsets, expected: tuple[int, float] | None
) -> None:
    found = lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS)
    assert found.read_uncommitted == expected
    assert found.greatest == (expected[0] if expected else found.lag)


@pytest.mark.parametrize(
    ("committed", "offsets", "expires"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500, 10_000), 7.5, id="unread"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 60_000, 10_000), 0.0, id="overdue"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS, 0), 0.0, id="kept for no time"),
        pytest.param(100, PartitionOffsets(0, 100, 100, -1, 10_000), None, id="all read"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), None, id="kept for ever"),
        pytest.param(90, PartitionOffsets(0, 100, 100, -1, 10_000), None, id="time unknown"),
    ],
)
def test_when_unread_records_expire(committed: int, offsets: PartitionOffsets, expires: float | None) -> None:
    assert lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS).expires_seconds == expires


def test_transactions_are_counted_by_state() -> None:
    def summary(*transactions: TransactionMetadata) -> TransactionsSummary:
        core = TransactionCore(0, BrokerSettings.parse({}))
        core.transactions.update({str(number): one for number, one in enumerate(transactions)})
        return transactions_of([core])

    assert summary().oldest_open_ms is None
    ongoing = TransactionMetadata(1, 0, 60_000, TransactionStatus.ONGOING, start_ms=NOW_MS)
    found = summary(
        ongoing, ongoing._replace(start_ms=NOW_MS - 5), TransactionMetadata(2, 0, 60_000, start_ms=1)
    )
    assert found.oldest_open_ms == NOW_MS - 5
    assert found.oldest_ending_ms is None
    ending = ongoing._replace(status=TransactionStatus.PREPARE_COMMIT, start_ms=1, update_ms=NOW_MS - 7)
    assert summary(ending, ending._replace(update_ms=NOW_MS)).oldest_ending_ms == NOW_MS - 7
    assert found.counts["Ongoing"] == 2
    assert found.counts["Empty"] == 1
    assert found.counts["PrepareAbort"] == 0


# -- lookups


class Turns:
    """The current turn of the event loop, and how often something happened in each."""

    def __init__(self) -> None:
        self.number = 0
        self.counts: Counter[int] = Counter()

    def count(self, times: int = 1) -> None:
        self.counts[self.number] += times

    async def run(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)


class Leader:
    """A session with a broker that answers every question in the next turn."""

    def __init__(self, turns: Turns) -> None:
        self.asked = turns
        self.questions: OffsetQuestions

    def send(self, item: Item) -> None:
        assert isinstance(item, AskOffsets)
        self.asked.count(len(item.positions))
        told = tuple(PartitionOffsets(0, offset + 7, offset + 7, -1) for _, offset in item.positions)
        asyncio.get_running_loop().call_soon(self.questions.received, OffsetsTold(item.call_id, told))

    def close(self) -> None: ...


def committed_core(groups: int, partitions: int, turns: Turns) -> GroupCore:
    """Returns a core that counts the offsets that are read from it."""
    core = GroupCore(BrokerSettings.parse({}), lambda: "id")
    for number in range(groups * partitions):
        key = GroupPartition(f"g{number // partitions}", "t", number % partitions)
        record = offset_record(key, CommittedOffset(number, -1, "", NOW_MS))
        core.replay(ReplayedRecord(*record, NOW_MS, None), number)
    core.activate(ClusterImage(1, {}, {}), NOW_MS)
    read_all = core.offsets.committed_offsets

    def counted() -> Iterator[tuple[GroupPartition, CommittedOffset]]:
        for one in read_all():
            turns.count()
            yield one

    core.offsets.committed_offsets = counted  # type: ignore[method-assign]
    return core


def test_a_lookup_of_many_positions_is_spread_over_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.kernel.slices.SLICE_MS", 0)  # a slice has STEPS_BETWEEN_READINGS steps
    monkeypatch.setattr(lag, "POSITIONS_OF_A_QUESTION", 50)
    groups, partitions = 4, 300

    async def run() -> None:
        read, asked = Turns(), Turns()
        turning = [asyncio.create_task(turns.run()) for turns in (read, asked)]
        core = committed_core(groups, partitions, read)
        leader, timer = Leader(asked), LoopTimer(asyncio.get_running_loop())
        leader.questions = OffsetQuestions(lambda partition: (1, leader), timer)
        runtime: Any = SimpleNamespace(shards={0: SimpleNamespace(core=core, state=ShardState.SERVING)})
        reporter = LagReporter(runtime, leader.questions, SystemClock(), timer)
        reporter.start()
        for _ in range(groups * partitions * TURNS_OF_OTHERS):
            await asyncio.sleep(0)
        assert {(found.group, found.partition, found.lag) for found in reporter.lags} == {
            (f"g{group}", partition, 7) for group in range(groups) for partition in range(partitions)
        }
        assert [(group.group, group.members) for group in reporter.groups] == [
            (f"g{group}", 0) for group in range(groups)
        ]
        assert sum(read.counts.values()) == sum(asked.counts.values()) == groups * partitions
        assert max(read.counts.values()) <= 2 * STEPS_BETWEEN_READINGS
        assert max(asked.counts.values()) <= 50
        reporter.stop()
        timer.close()
        for task in turning:
            task.cancel()

    asyncio.run(run())


def test_offsets_may_be_committed_and_deleted_during_a_lookup() -> None:
    core = committed_core(3, 2, Turns())
    seen = []
    for key, _ in core.offsets.committed_offsets():
        seen.append((key.group_id, key.partition))
        if len(seen) == 1:
            for gone in (GroupPartition("g0", "t", 1), GroupPartition("g1", "t", 0)):
                core.replay(ReplayedRecord(offset_record(gone, None).key, None, NOW_MS, None), 100)
            new = offset_record(GroupPartition("new", "t", 0), CommittedOffset(1, -1, "", NOW_MS))
            core.replay(ReplayedRecord(*new, NOW_MS, None), 101)
    assert seen == [("g0", 0), ("g0", 1), ("g1", 1), ("g2", 0), ("g2", 1)]


def test_questions_of_shards_do_not_wait_for_those_about_the_lag() -> None:
    sent: list[Item] = []
    line: Any = SimpleNamespace(send=sent.append)
    timer: Any = SimpleNamespace(add_after=lambda call, delay_ms: SimpleNamespace(cancel=lambda: None))
    questions = OffsetQuestions(lambda partition: (1, line), timer)
    told: list[Mapping[Position, PartitionOffsets]] = []
    for number in range(MAX_OPEN_CALLS_OF_LAG + 10):
        questions.ask_for_lag([(TopicPartition("t", number), 0)], told.append)
    assert len(sent) == MAX_OPEN_CALLS_OF_LAG
    questions.ask([(TopicPartition("of a shard", 0), 0)], told.append)
    last = sent[-1]
    assert isinstance(last, AskOffsets)
    assert last.positions[0][0].topic == "of a shard"
    questions.received(OffsetsTold(last.call_id, (PartitionOffsets(0, 5, 5, -1),)))
    assert len(told) == 1
    questions.session_ended(1)
    assert len(told) == MAX_OPEN_CALLS_OF_LAG + 1
    questions.session_ended(1)
    assert len(told) == MAX_OPEN_CALLS_OF_LAG + 11
