"""Transactions of our own producer against real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerlab.clients import produce_values
from tidelog.aio import Consumer, Producer, TopicPartition
from tidelog.client import Producer as ThreadProducer
from tidelog.client.errors import InvalidTransactionStateError, ProducerFencedError

pytestmark = pytest.mark.integration
COMMITTED = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}


async def committed_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Returns the first records that a reader of committed records sees, and checks that no more come."""
    values: list[bytes] = []
    async with Consumer[bytes, bytes](bootstrap, COMMITTED) as consumer:
        consumer.assign([(topic, 0)])
        while len(values) < count:
            values += [record.value for record in await consumer.poll(5)]
        values += [record.value for record in await consumer.poll(0.3)]
    return values


def test_a_commit_shows_all_records_and_an_abort_none(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()

    async def run() -> None:
        async with Producer[bytes, bytes](served, {"transactional.id": topic}) as producer:
            async with producer.transaction():
                await producer.send(topic, b"a1")
                await producer.send(topic, b"a2")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await (await producer.send(topic, b"never"))
                    raise ZeroDivisionError
            async with producer.transaction():
                pass  # nothing to commit
            async with producer.transaction():
                await producer.send(topic, b"b1")
            with pytest.raises(InvalidTransactionStateError):
                await producer.send(topic, b"outside")
        assert await committed_values(served, topic, 3) == [b"a1", b"a2", b"b1"]

    asyncio.run(run())


def test_a_newer_producer_fences_the_older_one(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()

    async def run() -> None:
        settings = {"transactional.id": topic}
        async with Producer[bytes, bytes](served, settings) as old:
            old.begin_transaction()
            await (await old.send(topic, b"old"))
            async with Producer[bytes, bytes](served, settings) as new:
                async with new.transaction():
                    await new.send(topic, b"new")
                with pytest.raises(ProducerFencedError):
                    await old.commit_transaction()
        assert await committed_values(served, topic, 1) == [b"new"]

    asyncio.run(run())


def test_records_and_offsets_are_committed_together(served: str, served_topic: Callable[..., str]) -> None:
    source, target = served_topic(), served_topic()
    produce_values(served, source, [b"1", b"2", b"3"])
    group = {"group.id": source, "auto.offset.reset": "earliest", "enable.auto.commit": False}

    async def run() -> None:
        async with (
            Consumer[bytes, bytes](served, group) as consumer,
            Producer[bytes, bytes](served, {"transactional.id": source}) as producer,
        ):
            consumer.subscribe([source])
            copied = 0
            while copied < 3:
                records = await consumer.poll(5)
                if not records:
                    continue
                with pytest.raises(ZeroDivisionError):
                    async with producer.transaction():
                        for record in records:
                            await producer.send(target, b"lost" + record.value)
                        await producer.send_offsets(consumer.positions(), consumer.group_metadata())
                        raise ZeroDivisionError
                assert (await consumer.committed([TopicPartition(source, 0)]))[(source, 0)] in (None, copied)
                async with producer.transaction():
                    for record in records:
                        await producer.send(target, record.value * 2)
                    await producer.send_offsets(consumer.positions(), consumer.group_metadata())
                copied += len(records)
            assert await consumer.committed([TopicPartition(source, 0)]) == {(source, 0): 3}
        assert await committed_values(served, target, 3) == [b"11", b"22", b"33"]

    asyncio.run(run())


def test_transactions_in_threads(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    with ThreadProducer[bytes, bytes](served, {"transactional.id": topic}) as producer:
        with producer.transaction():
            producer.send(topic, b"1")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"2")
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"3")
    assert asyncio.run(committed_values(served, topic, 2)) == [b"1", b"3"]
