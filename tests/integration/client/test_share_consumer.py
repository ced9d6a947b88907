"""Our own share consumer against real brokers, on asyncio and in threads."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.clients import produce_values
from tidelog.aio import AcknowledgeType, Admin, ShareConsumer, SharedRecord, TopicPartition
from tidelog.client import ShareConsumer as ThreadShareConsumer
from tidelog.model.errors import KafkaError

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


async def read_from_the_beginning(served: str, group: str) -> None:
    """Sets the group's `share.auto.offset.reset`, which is a setting of the broker."""
    async with Admin(served) as admin:
        await admin.alter_group_configs(group, {"share.auto.offset.reset": "earliest"})


async def read(consumer: ShareConsumer[Any, Any], count: int) -> list[SharedRecord[Any, Any]]:
    """Polls until `count` records arrived. It accepts what it gets."""
    records: list[SharedRecord[Any, Any]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        found = await consumer.poll(0.5)
        if consumer.settings.is_explicit:
            for record in found:
                consumer.acknowledge(record)
        records += found
    return records


def values(records: list[SharedRecord[Any, Any]]) -> list[int]:
    return [int(record.value) for record in records]


def test_members_share_the_records_of_a_partition(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    settings = {"group.id": topic, "max.poll.records": 5, "share.acquire.mode": "record_limit"}
    seen: list[list[int]] = [[], []]

    async def loop(consumer: ShareConsumer[bytes, bytes], mine: list[int]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while sum(map(len, seen)) < 200:
            assert time.monotonic() < deadline, seen
            mine += values(await consumer.poll(0.2))
        await consumer.commit()

    async def consume() -> None:
        await read_from_the_beginning(served, topic)
        async with (
            ShareConsumer[bytes, bytes](served, settings) as first,
            ShareConsumer[bytes, bytes](served, settings) as second,
        ):
            first.subscribe([topic])
            second.subscribe([topic])
            while not (first.assignment() and second.assignment()):
                await asyncio.gather(first.poll(0.1), second.poll(0.1))
            produce_values(served, topic, [b"%d" % number for number in range(200)])
            await asyncio.gather(loop(first, seen[0]), loop(second, seen[1]))
        assert sorted(seen[0] + seen[1]) == list(range(200))
        assert seen[0] and seen[1]

    asyncio.run(consume())


def test_explicit_acknowledgements(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    place = TopicPartition(topic, 0)
    told: Counter[tuple[TopicPartition, bool]] = Counter()

    def on_acknowledged(where: TopicPartition, offsets: list[int], error: KafkaError | None) -> None:
        told[where, error is None] += len(offsets)

    async def consume() -> None:
        produce_values(served, topic, [b"%d" % number for number in range(6)])
        await read_from_the_beginning(served, topic)
        settings = {"group.id": topic, **EXPLICIT}
        async with ShareConsumer[bytes, bytes](served, settings, on_acknowledged=on_acknowledged) as consumer:
            consumer.subscribe([topic])
            records: list[SharedRecord[bytes, bytes]] = []
            while not records:
                records = await consumer.poll(1)
            assert values(records) == list(range(6))
            assert {record.delivery_count for record in records} == {1}
            with pytest.raises(RuntimeError, match="must be acknowledged"):
                await consumer.poll(0.1)
            for record in records[:3]:
                consumer.acknowledge(record)
            consumer.acknowledge(records[3], AcknowledgeType.REJECT)
            for record in records[4:]:
                consumer.acknowledge(record, AcknowledgeType.RELEASE)
            assert await consumer.commit() == {place: None}
            with pytest.raises(RuntimeError, match="not a record that waits"):
                consumer.acknowledge(records[0])
            again = await read(consumer, 2)
            assert [(record.offset, record.delivery_count) for record in again] == [(4, 2), (5, 2)]
            await consumer.commit()
            assert told == {(place, True): 8}
            assert await consumer.poll(0.3) == []

    asyncio.run(consume())


def test_records_that_are_not_acknowledged_go_to_another_member(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic()

    async def consume() -> None:
        produce_values(served, topic, [b"%d" % number for number in range(10)])
        await read_from_the_beginning(served, topic)
        async with ShareConsumer[bytes, bytes](served, {"group.id": topic, "max.poll.records": 4}) as first:
            first.subscribe([topic])
            got: list[SharedRecord[bytes, bytes]] = []
            while len(got) < 4:
                got += await first.poll(0.5, max_records=4 - len(got))
            await first.commit()
            more: list[SharedRecord[bytes, bytes]] = []
            while not more:
                more = await first.poll(0.5)
        async with ShareConsumer[bytes, bytes](served, {"group.id": topic}) as second:
            second.subscribe([topic])
            assert values(await read(second, 6)) == [4, 5, 6, 7, 8, 9]

    asyncio.run(consume())


def test_the_share_consumer_for_threads(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    produce_values(served, topic, [b"%d" % number for number in range(20)])
    asyncio.run(read_from_the_beginning(served, topic))
    with ThreadShareConsumer[bytes, bytes](served, {"group.id": topic, **EXPLICIT}) as consumer:
        consumer.subscribe([topic])
        seen = []
        for record in consumer:
            seen.append(int(record.value))
            consumer.acknowledge(record)
            if len(seen) == 20:
                break
        assert seen == list(range(20))
        assert consumer.commit() == {TopicPartition(topic, 0): None}
        assert consumer.assignment() == [TopicPartition(topic, 0)]
