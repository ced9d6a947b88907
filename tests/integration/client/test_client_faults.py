"""Our own client against brokers that fail or answer late. Each test is a fault that a review found."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

import tidelog.client as threads
from brokerlab.client_parts import ClientParts
from tidelog.aio import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from tidelog.client.errors import InvalidTransactionStateError
from tidelog.model.errors import KafkaError
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
EARLIEST = {"auto.offset.reset": "earliest"}
DEADLINE_S = 60.0
PROMPTLY_S = 3.0
"""A call that waits for a rebalance or for a timeout of the client takes far longer."""


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.clean()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def test_a_position_behind_the_end_of_a_shorter_log_is_reset(cluster: Cluster) -> None:
    cluster.produce("shorter", "a", "b")

    async def read() -> None:
        async with Consumer[bytes, bytes](cluster.bootstrap, EARLIEST) as consumer:
            consumer.assign([("shorter", 0)])
            consumer.seek(TopicPartition("shorter", 0), 5)
            assert [record.value for record in await consumer.poll(DEADLINE_S)] == [b"a", b"b"]

    run(read())


def test_a_committed_position_goes_on_where_the_log_lost_records(cluster: Cluster) -> None:
    cluster.produce("truncated", "a", "b")
    place = TopicPartition("truncated", 0)

    async def read() -> None:
        async with Consumer[bytes, bytes](cluster.bootstrap, EARLIEST) as consumer:
            consumer.assign([place])
            ClientParts(consumer).core.partitions[place].seek(5, 0)  # as a committed offset does
            while await consumer.position(place) != 2:
                assert await consumer.poll(0.05) == []
            await asyncio.to_thread(cluster.produce, "truncated", "c")
            assert [record.value for record in await consumer.poll(DEADLINE_S)] == [b"c"]

    run(read())


def test_asyncio_reports_no_answer_that_a_closed_producer_does_not_await(cluster: Cluster) -> None:
    cluster.create_topic("closed")
    reports: list[dict[str, Any]] = []

    async def send() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        producer = Producer[bytes, bytes](cluster.bootstrap, {"linger.ms": 0})
        await producer.start()
        with cluster.delay("Produce", 10) as fault:
            delivery = await producer.send("closed", b"0")
            await asyncio.to_thread(fault.wait)
            await producer.close(flushes=False)
        with pytest.raises(KafkaError, match="the producer was closed"):
            await delivery
        del producer, delivery
        gc.collect()

    run(send())
    assert reports == []


def test_an_answer_about_a_topic_that_metadata_forgot(cluster: Cluster) -> None:
    cluster.create_topic("forgotten")

    async def send() -> None:
        async with Producer[bytes, bytes](cluster.bootstrap, {"linger.ms": 0}) as producer:
            await producer.send_and_wait("forgotten", b"0")
            cluster.delay("Produce", 0.5)
            delivery = await producer.send("forgotten", b"1")
            assert ClientParts(producer).core._requests
            ClientParts(producer).core.view.forget("forgotten")  # as metadata with an error does
            assert (await delivery).offset == 1

    run(send())


def test_a_cancelled_iteration_loses_no_record(cluster: Cluster) -> None:
    cluster.produce("cancelled", "a", "b")

    async def read() -> None:
        async with Consumer[bytes, bytes](cluster.bootstrap, EARLIEST) as consumer:
            consumer.assign([("cancelled", 0)])
            take = ClientParts(consumer).core.take
            values: list[bytes] = []

            def take_and_cancel(most: int, *, raises: bool = True) -> Any:
                found = take(most, raises=raises)
                if found is not None:
                    asyncio.get_running_loop().call_soon(task.cancel)
                return found

            ClientParts(consumer).core.take = take_and_cancel  # type: ignore[method-assign]
            for _ in range(2):
                task = asyncio.ensure_future(anext(consumer))
                with contextlib.suppress(asyncio.CancelledError):
                    values.append((await task).value)
            assert values == [b"a", b"b"]

    run(read())


def test_a_commit_in_an_iteration_covers_only_what_was_yielded(cluster: Cluster) -> None:
    cluster.produce("yielded", *map(str, range(10)))
    place = TopicPartition("yielded", 0)
    settings = {**EARLIEST, "group.id": "yielded", "enable.auto.commit": False}
    with threads.Consumer[bytes, bytes](cluster.bootstrap, settings) as consumer:
        consumer.subscribe(["yielded"])
        for record in consumer:
            assert record.value == b"0"
            consumer.commit()
            assert consumer.committed([place]) == {place: 1}
            assert consumer.positions() == {place: 1} and consumer.position(place) == 1
            break
        assert [record.value for record in consumer.poll(10)] == [b"%d" % number for number in range(1, 10)]


def test_a_break_of_an_iteration_counts_only_yielded_records_as_dealt_with(cluster: Cluster) -> None:
    cluster.produce("broken", *map(str, range(10)))
    place = TopicPartition("broken", 0)
    with threads.Consumer[bytes, bytes](cluster.bootstrap, {**EARLIEST, "group.id": "broken"}) as consumer:
        consumer.subscribe(["broken"])
        for _ in consumer:
            break
    with threads.Consumer[bytes, bytes](cluster.bootstrap, {"group.id": "broken"}) as consumer:
        assert consumer.committed([place]) == {place: 1}


def test_a_seek_in_an_iteration_counts_at_once(cluster: Cluster) -> None:
    cluster.produce("sought", *map(str, range(10)))
    with threads.Consumer[bytes, bytes](cluster.bootstrap, EARLIEST) as consumer:
        consumer.assign([("sought", 0)])
        values = []
        for record in consumer:
            values.append(record.value)
            if len(values) == 1:
                consumer.seek(TopicPartition("sought", 0), 8)
            if record.value == b"9":
                break
        assert values == [b"0", b"8", b"9"]


def test_a_commit_covers_the_control_records_at_the_end(cluster: Cluster) -> None:
    cluster.create_topic("control")
    place = TopicPartition("control", 0)
    settings = {**EARLIEST, "group.id": "control", "enable.auto.commit": False}

    async def work() -> None:
        async with (
            Producer[bytes, bytes](cluster.bootstrap, {"transactional.id": "control"}) as producer,
            Consumer[bytes, bytes](cluster.bootstrap, settings) as consumer,
        ):
            consumer.assign([place])
            producer.begin_transaction()
            await producer.send_and_wait("control", b"1")
            assert await consumer.poll(DEADLINE_S)
            await consumer.poll(0.1)
            await producer.commit_transaction()
            while await consumer.position(place) < 2:
                await consumer.poll(0.1)
            await consumer.commit()
            assert await consumer.committed([place]) == {place: 2}
            assert consumer.lag() == {place: 0}

    run(work())


def test_a_send_during_a_commit_raises_and_harms_no_later_transaction(cluster: Cluster) -> None:
    cluster.create_topic("late")

    async def send() -> None:
        async with Producer[bytes, bytes](cluster.bootstrap, {"transactional.id": "late"}) as producer:
            async with producer.transaction():
                await producer.send_and_wait("late", b"0")
            producer.begin_transaction()
            await producer.send("late", b"1")
            cluster.delay("Produce", 0.3)
            commit = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(0)
            with pytest.raises(InvalidTransactionStateError, match="ending"):
                await producer.send("late", b"late")
            await commit
            async with producer.transaction():
                await producer.send_and_wait("late", b"2")

    run(send())
    assert [record.value for record in cluster.records("late")] == [b"0", b"1", b"2"]


def test_a_close_during_a_rebalance_does_not_wait_for_its_end(cluster: Cluster) -> None:
    """The coordinator refuses commits while the leader of a classic group has not assigned partitions."""
    cluster.create_topic("closing", 2)
    settings = {
        **EARLIEST,
        "group.id": "closing",
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 100,
        "auto.commit.interval.ms": 600_000,
    }

    async def poll(consumer: Consumer[bytes, bytes]) -> None:
        while True:
            await consumer.poll(0.1)

    async def state_of_group(admin: Admin) -> tuple[str, int]:
        group = await admin.describe_group("closing")
        return group.state, len(group.members)

    async def work() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            Consumer[bytes, bytes](cluster.bootstrap, {**settings, "client.id": "leader"}) as leader,
        ):
            leader.subscribe(["closing"])
            while len(leader.assignment()) < 2:
                await leader.poll(0.1)
            polling = asyncio.create_task(poll(leader))
            follower = Consumer[bytes, bytes](cluster.bootstrap, settings)
            await follower.start()
            follower.subscribe(["closing"])
            while not (follower.assignment() and await state_of_group(admin) == ("Stable", 2)):
                await follower.poll(0.1)
            (place,) = follower.assignment()
            sync = cluster.delay("SyncGroup", DEADLINE_S, times=None, client_id="leader")
            await asyncio.to_thread(cluster.rebalance, "closing")
            while (await state_of_group(admin))[0] != "CompletingRebalance":
                await follower.poll(0.1)
            await asyncio.to_thread(cluster.produce, "closing", "a", partition=place.partition)
            assert await follower.poll(DEADLINE_S)
            await follower.poll(0.1)  # the application has dealt with the record, so the close commits it
            began_s = time.monotonic()
            await follower.close()
            assert time.monotonic() - began_s < PROMPTLY_S
            _, members = await state_of_group(admin)
            assert members == 2, "the leader and the member that caused the rebalance"
            sync.end()
            polling.cancel()

    run(work())


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_share_consumer_goes_on_with_a_topic_that_was_created_again(cluster: Cluster, mode: str) -> None:
    """The broker knows the partitions of a share session by the id of the topic, which is a new one then."""
    cluster.produce("recreated", "old")
    settings = {"group.id": "recreated", "share.acknowledgement.mode": mode, "metadata.max.age.ms": 500}

    async def read_one(consumer: ShareConsumer[bytes, bytes]) -> bytes | None:
        while True:
            for record in await consumer.poll(0.2):
                if mode == "explicit":
                    consumer.acknowledge(record)
                return record.value

    async def work() -> None:
        async with Admin(cluster.bootstrap) as admin:
            await admin.alter_group_configs("recreated", {"share.auto.offset.reset": "earliest"})
            async with ShareConsumer[bytes, bytes](cluster.bootstrap, settings) as consumer:
                consumer.subscribe(["recreated"])
                assert await read_one(consumer) == b"old"
                await admin.delete_topic("recreated")
                await asyncio.to_thread(cluster.produce, "recreated", "new")
                assert await read_one(consumer) == b"new"

    run(work())
