"""The copies of a share partition's dead letters, with a real log, and topics and writes that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share import dead_letter_copies
from tidelog.broker.share.dead_letter_copies import DeadLetterCopies, DeadLetterLoad
from tidelog.broker.share.deliveries import DeliveryLimits, LogBatch, StateRange, Wanted
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import READ_COMMITTED
from tidelog.records.batch import EndTransactionMarker
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records
from tidelog.rpc.broker_commands import PartitionState, TopicState
from tidelog.settings.group_settings import GroupSettings

LIMIT = 3
ARCHIVING = DeliveryState.ARCHIVING


def dead_topic(partitions: int = 1) -> TopicState:
    states = tuple(
        PartitionState("dlq.t", UUID(int=9), index, 1, 0, (1,), (1,), 1) for index in range(partitions)
    )
    return TopicState("dlq.t", UUID(int=9), states, {})


class Topics:
    """The dead letter topic. `failures` are the errors of the next searches."""

    def __init__(self) -> None:
        self.failures: list[KafkaError | ConnectionError] = []
        self.max_bytes = 10**6

    async def find(self, name: str) -> TopicState:
        assert name == "dlq.t"
        if self.failures:
            raise self.failures.pop(0)
        return dead_topic()

    def max_message_bytes(self, topic: TopicState) -> int:
        return self.max_bytes


class Writer:
    """Keeps what is written. `failures` are the errors of the next writes."""

    def __init__(self) -> None:
        self.failures: list[KafkaError] = []
        self.refused_bytes: int | None = None
        self.batches: list[list[Record]] = []

    async def write(self, topic: str, partition: int, batch: bytearray) -> None:
        await asyncio.sleep(0)
        assert (topic, partition) == ("dlq.t", 0)
        if self.failures:
            raise self.failures.pop(0)
        if self.refused_bytes is not None and len(batch) > self.refused_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        self.batches.append(list(iterate_records(batch)))

    async def close(self) -> None: ...

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in batch]


class Partition:
    """A share partition whose records have been given up already."""

    def __init__(self, replica: Replica, *stored: StateRange, isolation_level: int = 0) -> None:
        self.group_id = "sharers"
        self.replica = replica
        self.core: SharePartitionCore | None = SharePartitionCore(0, 0, 0, stored)
        self.settings = GroupSettings(
            errors_deadletterqueue_topic_name="dlq.t", errors_deadletterqueue_copy_record_enable=True
        )
        self.isolation_level = isolation_level
        self.is_leader = True
        self.changes = 0

    def continues(self) -> bool:
        return self.is_leader

    def dead_letters_changed(self) -> None:
        self.changes += 1
        assert self.core is not None
        if self.core.next_write() is not None:
            self.core.write_succeeded(MonotonicMs(0), DeliveryLimits(1, LIMIT, 100))


class Lab:
    def __init__(self, broker: InMemoryBroker) -> None:
        self.broker = broker
        broker.add_topic("t", 1)
        self.replica = broker.broker.hosted.leader_replica("t", 0)
        self.topics, self.writer = Topics(), Writer()
        self.slept: list[float] = []

    def append(self, *values: bytes, **producer: Any) -> None:
        records = [Record(at, 1_700_000_000_000, b"k", value) for at, value in enumerate(values)]
        now_ms = self.broker.clock.wall_ms()
        self.replica.append(memoryview(build_batch(records, **producer)), -1, 9, now_ms)

    def copy(self, partition: Partition, until: Callable[[], bool] = lambda: False) -> DeadLetterLoad:
        """Copies until nothing is left, or until the condition holds when the copies pause."""
        tasks: list[Coroutine[object, None, None]] = []
        parts = self.broker.broker
        copies = DeadLetterCopies(self.topics, self.writer, parts.clock, parts.record_walks, tasks.append)
        pause = asyncio.sleep

        async def sleep(seconds: float) -> None:
            task = asyncio.current_task()
            assert task is not None
            if seconds and task.get_coro() in tasks:  # others on this loop belong to the broker
                self.slept.append(seconds)
                if until():
                    partition.core = None
            await pause(0)

        copies.begin(partition)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dead_letter_copies.asyncio, "sleep", sleep)
            for task in tasks:
                self.broker.runner.run(task)
        return copies.loads().get("sharers", DeadLetterLoad())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    broker = InMemoryBroker(tmp_path)
    yield Lab(broker)
    broker.close()


def offsets(writer: Writer) -> list[int]:
    headers = [dict(record.headers) for batch in writer.batches for record in batch]
    return [int(found["__dlq.errors.offset"] or b"") for found in headers]


def test_dead_letters_are_copied_and_archived(lab: Lab) -> None:
    lab.append(b"0", b"1", b"2")
    lab.append(b"3", b"4")
    partition = Partition(lab.replica, StateRange(1, 1, ARCHIVING, 1), StateRange(2, 3, ARCHIVING, LIMIT))
    assert lab.copy(partition) == DeadLetterLoad(copied=3)
    assert lab.writer.values == [b"1", b"2", b"3"]
    assert offsets(lab.writer) == [1, 2, 3]
    assert partition.core is not None
    assert partition.core.archiving_count == 0
    assert not lab.slept


def test_a_failure_is_repeated_with_growing_pauses(lab: Lab) -> None:
    lab.append(b"0")
    partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
    lab.topics.failures = [KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no"), ConnectionError("no")]
    lab.writer.failures = [KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)] * 8
    assert lab.copy(partition) == DeadLetterLoad(copied=1, failures=10)
    assert lab.writer.values == [b"0"]
    assert lab.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]


def test_a_record_that_is_too_large_does_not_hold_up_others(lab: Lab) -> None:
    lab.append(b"0", bytes(2_000), b"2")
    partition = Partition(lab.replica, StateRange(0, 2, ARCHIVING, 1))
    lab.topics.max_bytes = lab.writer.refused_bytes = 1_000

    def can_be_written() -> bool:
        if len(lab.slept) == 2:
            lab.topics.max_bytes = lab.writer.refused_bytes = 10_000
        return False

    assert lab.copy(partition, can_be_written).copied == 3
    assert lab.writer.values == [b"0", b"2", bytes(2_000)]


def test_offsets_beyond_the_high_watermark_wait(lab: Lab) -> None:
    """A new leader does not know at once how much of its log is replicated."""
    lab.append(b"0", b"1")
    partition = Partition(lab.replica, StateRange(0, 9, ARCHIVING, 1))
    core = cast(SharePartitionCore, partition.core)
    assert lab.copy(partition, until=lambda: True) == DeadLetterLoad(copied=2)
    assert lab.writer.values == [b"0", b"1"]
    assert (core.archiving_count, core.start_offset) == (8, 2)


@pytest.mark.parametrize("topic", ["", "t"], ids=["none", "the topic itself"])
def test_records_that_need_no_copy_are_archived(lab: Lab, topic: str) -> None:
    """The group has no dead letter topic any more, or it reads the topic itself."""
    lab.append(b"0")
    partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
    partition.settings = GroupSettings(errors_deadletterqueue_topic_name=topic)
    core = cast(SharePartitionCore, partition.core)
    assert lab.copy(partition) == DeadLetterLoad()
    assert not lab.writer.batches
    assert (core.archiving_count, core.start_offset) == (0, 1)


def test_many_records_that_need_no_copy_are_archived_in_parts(lab: Lab) -> None:
    stored = [StateRange(at, at, ARCHIVING, 1 + at % 2) for at in range(1_200)]
    partition = Partition(lab.replica, *stored)
    partition.settings = GroupSettings()
    lab.copy(partition)
    assert partition.changes == 3
    assert cast(SharePartitionCore, partition.core).start_offset == 1_200


def test_a_broker_that_leads_no_more_stops_its_attempts(lab: Lab) -> None:
    lab.append(b"0")
    partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
    lab.topics.failures = [KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)]

    def is_deposed() -> bool:
        partition.is_leader = False
        return False

    assert lab.copy(partition, is_deposed) == DeadLetterLoad(failures=1)
    assert not lab.writer.batches


def test_a_leader_that_is_deposed_archives_nothing(lab: Lab) -> None:
    lab.append(b"0")
    partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
    core = cast(SharePartitionCore, partition.core)
    write = lab.writer.write

    async def write_last(topic: str, partition_index: int, batch: bytearray) -> None:
        await write(topic, partition_index, batch)
        partition.core = None

    lab.writer.write = write_last  # type: ignore[method-assign]
    lab.copy(partition)
    assert core.archiving_count == 1
    assert not partition.changes


def test_copies_are_bounded(lab: Lab) -> None:
    for _ in range(3):
        lab.append(*[bytes(10_000)] * 60)
    partition = Partition(lab.replica, StateRange(0, 179, ARCHIVING, 1))
    assert lab.copy(partition) == DeadLetterLoad(copied=180)
    assert [len(batch) for batch in lab.writer.batches] == [97, 8, 75]


def test_markers_and_aborted_records_are_left_out(lab: Lab) -> None:
    lab.append(b"0")
    transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    lab.broker.append("t", **transaction)
    at = lab.broker.clock.wall_ms()
    lab.replica.append_marker(7, 0, EndTransactionMarker(False, 0), 1, at)
    lab.append(b"3")
    partition = Partition(lab.replica, StateRange(0, 3, ARCHIVING, 1), isolation_level=READ_COMMITTED)
    lab.copy(partition)
    assert offsets(lab.writer) == [0, 3]
    assert cast(SharePartitionCore, partition.core).start_offset == 4


def test_records_that_are_given_up_during_a_copy_do_not_delay_the_next(lab: Lab) -> None:
    lab.append(*[b"v"] * 4)
    partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
    core = cast(SharePartitionCore, partition.core)
    limits = DeliveryLimits(1, 1, 100, has_dead_letters=True)
    core.acquire(Wanted("a", 3, 3), [LogBatch(1, 3)], MonotonicMs(0), limits)
    write = lab.writer.write

    async def write_and_expire(topic: str, partition_index: int, batch: bytearray) -> None:
        await write(topic, partition_index, batch)
        core.expire(MonotonicMs(10), limits)

    lab.writer.write = write_and_expire  # type: ignore[method-assign]
    assert lab.copy(partition).copied == 4
    assert not lab.slept


def test_topics_that_do_not_answer_hold_up_no_others(lab: Lab) -> None:
    """Topics that answered before keep their turns, though more topics hang than there are turns."""
    lab.append(b"v")
    parts, gate, written = lab.broker.broker, asyncio.Event(), list[str]()

    class AnyTopic:
        async def find(self, name: str) -> TopicState:
            return dead_topic()._replace(name=name)

        def max_message_bytes(self, topic: TopicState) -> int:
            return 10**6

    class HangingWriter(Writer):
        async def write(self, topic: str, partition: int, batch: bytearray) -> None:
            if topic != "good":
                await gate.wait()
            written.append(topic)

    async def copy_all() -> None:
        tasks: list[asyncio.Task[None]] = []
        copies = DeadLetterCopies(
            AnyTopic(),
            HangingWriter(),
            parts.clock,
            parts.record_walks,
            lambda work: tasks.append(asyncio.ensure_future(work)),  # type: ignore[arg-type]
        )

        def begin(name: str) -> None:
            partition = Partition(lab.replica, StateRange(0, 0, ARCHIVING, 1))
            partition.settings = GroupSettings(errors_deadletterqueue_topic_name=name)
            copies.begin(partition)

        begin("good")
        await asyncio.wait_for(tasks[-1], 30)
        for at in range(800):
            begin(f"bad-{at % 80}")
        begin("good")
        await asyncio.wait_for(tasks[-1], 30)
        assert written == ["good"] * 2
        gate.set()
        await asyncio.gather(*tasks)

    lab.broker.runner.run(copy_all())
    assert len(written) == 802
