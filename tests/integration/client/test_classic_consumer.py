"""Our own consumer in groups of the classic protocol, alone and with members of other clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tidelog.aio import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0
PARTITIONS = 6
CLASSIC: dict[str, object] = {
    "group.protocol": "classic",
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 300,
}


async def until(is_true: Callable[[], bool], state: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, state()
        await asyncio.sleep(0.05)


class Reader:
    """Polls one of our consumers in the background and keeps what it got."""

    def __init__(self, consumer: Consumer[bytes, bytes]) -> None:
        self.consumer = consumer
        self.seen: list[int] = []
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while not self._is_over.is_set():
            self.seen += [int(record.value) for record in await self.consumer.poll(0.2)]

    @property
    def partitions(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    async def stop(self) -> None:
        self._is_over.set()
        await self._task


class ForeignReader:
    """A member of another client, which polls in a thread."""

    def __init__(self, bootstrap: str, topic: str, strategy: str) -> None:
        self.seen: list[int] = []
        self.partitions: set[int] = set()
        self._bootstrap, self._topic, self._strategy = bootstrap, topic, strategy
        self._is_over = False
        self._task = asyncio.create_task(asyncio.to_thread(self._run))

    def _run(self) -> None:
        if self._strategy == "sticky":  # librdkafka does not know it
            self._read_with_kafka_python()
        else:
            self._read_with_librdkafka()

    def _read_with_librdkafka(self) -> None:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._topic,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": self._strategy,
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self._topic])
        while not self._is_over:
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                self.seen.append(int(record.value()))
            self.partitions = {place.partition for place in consumer.assignment()}
        consumer.close()

    def _read_with_kafka_python(self) -> None:
        consumer: Any = kafka.KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._topic,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[StickyPartitionAssignor],
        )
        while not self._is_over:
            for records in consumer.poll(100).values():
                self.seen += [int(record.value) for record in records]
            self.partitions = {place.partition for place in consumer.assignment()}
        consumer.close()

    async def stop(self) -> None:
        self._is_over = True
        await self._task


@pytest.mark.parametrize(
    ("strategy", "is_leader"),
    [
        ("range", True),
        pytest.param("range", False, marks=pytest.mark.slow),
        pytest.param("roundrobin", True, marks=pytest.mark.slow),
        pytest.param("roundrobin", False, marks=pytest.mark.slow),
        pytest.param("sticky", True, marks=pytest.mark.slow),
        ("sticky", False),
        ("cooperative-sticky", True),
        pytest.param("cooperative-sticky", False, marks=pytest.mark.slow),
    ],
)
def test_a_group_with_another_client(
    bootstrap: str, new_topic: Callable[..., str], strategy: str, is_leader: bool
) -> None:
    name = new_topic(partitions=PARTITIONS)

    async def consume() -> None:
        settings = {**CLASSIC, "group.id": name, "partition.assignment.strategy": strategy}
        revoked: list[TopicPartition] = []
        async with (
            Producer[bytes, bytes](bootstrap) as producer,
            Consumer[bytes, bytes](bootstrap, settings) as consumer,
        ):
            if not is_leader:
                other = ForeignReader(bootstrap, name, strategy)
                await until(lambda: len(other.partitions) == PARTITIONS, lambda: other.partitions)
            consumer.subscribe([name], on_revoked=revoked.extend)
            ours = Reader(consumer)
            if is_leader:
                await until(lambda: len(ours.partitions) == PARTITIONS, consumer.health)
                other = ForeignReader(bootstrap, name, strategy)
            await until(
                lambda: (
                    len(ours.partitions) == len(other.partitions) == PARTITIONS // 2
                    and not ours.partitions & other.partitions
                ),
                lambda: (consumer.health(), ours.partitions, other.partitions),
            )
            if is_leader:
                is_kept = strategy == "cooperative-sticky"
                assert len(revoked) == (PARTITIONS // 2 if is_kept else PARTITIONS), revoked
            for number in range(120):
                await producer.send(name, b"%d" % number, partition=number % PARTITIONS)
            await producer.flush()
            await until(lambda: len(ours.seen) + len(other.seen) >= 120, lambda: (ours.seen, other.seen))
            assert sorted(ours.seen + other.seen) == list(range(120))
            assert len(ours.seen) == len(other.seen) == 60
            await other.stop()
            await until(lambda: len(ours.partitions) == PARTITIONS, consumer.health)
            await producer.send_and_wait(name, b"120", partition=min(other.partitions))
            await until(lambda: 120 in ours.seen, lambda: ours.seen)
            await ours.stop()

    asyncio.run(consume())


def test_a_group_of_our_own_rebalances_and_commits(served: str, served_topic: Callable[..., str]) -> None:
    name = served_topic(4)
    settings = {**CLASSIC, "group.id": name}

    async def consume() -> None:
        async with Producer[bytes, bytes](served) as producer:
            async with Consumer[bytes, bytes](served, settings) as first:
                first.subscribe([name])
                one = Reader(first)
                await until(lambda: len(one.partitions) == 4, first.health)
                async with Consumer[bytes, bytes](served, settings) as second:
                    second.subscribe([name])
                    two = Reader(second)
                    await until(lambda: len(one.partitions) == len(two.partitions) == 2, first.health)
                    for number in range(100):
                        await producer.send(name, b"%d" % number, partition=number % 4)
                    await producer.flush()
                    await until(lambda: len(one.seen) + len(two.seen) >= 100, second.health)
                    await two.stop()
                    await second.commit()
                await until(lambda: len(one.partitions) == 4, first.health)
                await one.stop()
                await first.commit()
                assert sorted(one.seen + two.seen) == list(range(100))
            async with Consumer[bytes, bytes](served, settings) as third:
                places = [TopicPartition(name, index) for index in range(4)]
                assert sum(found or 0 for found in (await third.committed(places)).values()) == 100

    asyncio.run(consume())


def test_a_static_member_comes_back_without_a_rebalance(
    served: str, served_topic: Callable[..., str]
) -> None:
    name = served_topic(2)
    settings = {**CLASSIC, "group.id": name, "partition.assignment.strategy": "cooperative-sticky"}

    async def consume() -> None:
        revoked: list[TopicPartition] = []
        assigned: list[TopicPartition] = []
        async with Consumer[bytes, bytes](served, {**settings, "group.instance.id": "one"}) as first:
            first.subscribe([name], on_assigned=assigned.extend, on_revoked=revoked.extend)
            one = Reader(first)
            await until(lambda: len(one.partitions) == 2, first.health)
            static = {**settings, "group.instance.id": "two", "session.timeout.ms": 30_000}
            async with Consumer[bytes, bytes](served, static) as second:
                second.subscribe([name])
                two = Reader(second)
                await until(lambda: len(one.partitions) == len(two.partitions) == 1, second.health)
                had = two.partitions
                await two.stop()
            generation = first.group_metadata().member_epoch
            async with Consumer[bytes, bytes](served, static) as again:
                again.subscribe([name])
                two = Reader(again)
                await until(lambda: two.partitions == had, again.health)
                await two.stop()
                assert (
                    first.group_metadata().member_epoch == generation == again.group_metadata().member_epoch
                )
            assert len(revoked) == 1 and len(assigned) == 2
            await one.stop()

    asyncio.run(consume())


def test_a_pattern_finds_a_new_topic(served: str, served_topic: Callable[..., str]) -> None:
    name = served_topic()
    prefix = name.rsplit("-", 1)[0]

    async def consume() -> None:
        settings = {**CLASSIC, "group.id": name, "metadata.max.age.ms": 300}
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe(pattern=f"{prefix}-[0-9]+")
            ours = Reader(consumer)
            await until(lambda: len(consumer.assignment()) == 1, consumer.health)
            await asyncio.to_thread(served_topic)
            await until(lambda: len(consumer.assignment()) == 2, consumer.health)
            await ours.stop()
            with pytest.raises(ValueError, match="no regular expression"):
                consumer.subscribe(pattern="(")
            with pytest.raises(ValueError, match="not to both"):
                consumer.subscribe([name], pattern="a")

    asyncio.run(consume())
