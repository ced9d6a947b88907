"""Our own consumer against real brokers, on asyncio and in threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, produce_values
from tidelog.aio import Admin, Consumer, DeserializationError, Producer, TopicPartition
from tidelog.client import Consumer as ThreadConsumer
from tidelog.client.core.cluster_view import EpochEnd
from tidelog.client.exceptions import OffsetOutOfRangeError, StaleMemberError
from tidelog.client.serializers import json_deserializer
from tidelog.client.shell.consuming.consumer import CLOSE_TIMEOUT_S
from tidelog.client.shell.consuming.group_calls import GroupCalls
from tidelog.model.errors import ErrorCode, KafkaError

pytestmark = pytest.mark.integration
EARLIEST = {"auto.offset.reset": "earliest"}
DEADLINE_S = 60.0


async def read(consumer: Consumer[Any, Any], count: int) -> list[bytes]:
    """Polls until `count` records arrived."""
    values: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count} records: {consumer.health()}"
        values += [record.value for record in await consumer.poll(1)]
    return values


def test_a_group_reads_commits_and_continues(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic(3)
    settings = {**EARLIEST, "group.id": topic, "enable.auto.commit": False}

    async def consume() -> None:
        async with Producer[bytes, bytes](served) as producer:
            for number in range(300):
                await producer.send(topic, b"%d" % number, key=b"%d" % number)
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            seen = []
            async for record in consumer:
                seen.append(int(record.value))
                if len(seen) == 300:
                    break
            assert sorted(seen) == list(range(300))
            assert sum(consumer.lag()[place] or 0 for place in consumer.assignment()) == 0
            health = consumer.health()
            assert health.state == "joined" and health.assigned_partitions == 3, health
            await consumer.commit()
            committed = await consumer.committed(consumer.assignment())
            assert sum(offset or 0 for offset in committed.values()) == 300
        async with Producer[bytes, bytes](served) as producer:
            await producer.send(topic, b"new")
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            assert await read(consumer, 1) == [b"new"]

    asyncio.run(consume())


@pytest.mark.parametrize("kind", ["assigned", "consumer", "classic", "pattern"])
def test_a_topic_created_again(served: str, served_topic: Callable[..., str], kind: str) -> None:
    """All its records arrive, although the earlier position exists in it, too."""
    topic = served_topic(1)
    place = TopicPartition(topic, 0)
    settings: dict[str, Any] = {
        **EARLIEST,
        "allow.auto.create.topics": False,
        "metadata.max.age.ms": 1_000,
        "auto.commit.interval.ms": 50,
    }
    if kind != "assigned":
        settings |= {"group.id": topic, "group.protocol": "classic" if kind == "classic" else "consumer"}

    async def consume() -> None:
        async with Admin(served) as admin, Consumer[bytes, bytes](served, settings) as consumer:
            if kind == "assigned":
                consumer.assign([place])
            elif kind == "pattern":
                consumer.subscribe(pattern=f"{topic}.*")
            else:
                consumer.subscribe([topic])
            await send(10, "first")
            assert len(await read(consumer, 10)) == 10
            await admin.delete_topic(topic)
            await created_again(admin)
            await send(20, "next")
            found: list[bytes] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < 20:
                assert time.monotonic() < deadline, (found, consumer.health(), consumer.positions())
                found += [record.value for record in await consumer.poll(0.2)]
            assert found == [b"next-%d" % number for number in range(20)]

    async def created_again(admin: Admin) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await admin.create_topic(topic)
                    return
                except KafkaError as error:  # the deletion may be under way
                    assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS, error
                await asyncio.sleep(0.1)

    async def send(count: int, text: str) -> None:
        async with Producer[bytes, bytes](served) as producer:
            for number in range(count):
                await producer.send_and_wait(topic, f"{text}-{number}".encode())

    asyncio.run(consume())


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("close", 10), ("break", 3), ("cancelled", 10), ("error", 2), ("late", 0)],
)
@pytest.mark.parametrize("is_threaded", [False, True])
def test_commit_of_a_clean_stop(
    served: str, served_topic: Callable[..., str], ending: str, expected: int, is_threaded: bool
) -> None:
    """An error may interrupt the application while it deals with the last record of an iteration, or with
    the records of the last poll. They are read again.
    """
    topic = served_topic(1)
    settings = {**EARLIEST, "group.id": topic, "auto.commit.interval.ms": 3_600_000}
    produce_values(served, topic, [b"v"] * 10)

    async def consume() -> None:
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            if ending in ("break", "error"):
                seen = 0
                async for _ in consumer:
                    seen += 1
                    if seen == 3:
                        assert ending == "break", "the application failed"
                        break
                return
            await read(consumer, 10)
            assert ending != "late", "the application failed"
            if ending == "cancelled":
                asyncio.current_task().cancel()  # type: ignore[union-attr]  # it runs in a task
                await consumer.poll(DEADLINE_S)

    def consume_in_thread() -> None:
        with ThreadConsumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            if ending in ("break", "error"):
                for seen, _ in enumerate(consumer, 1):
                    if seen == 3:
                        assert ending == "break", "the application failed"
                        break
                return
            found = 0
            while found < 10:
                found += len(consumer.poll())
            assert ending != "late", "the application failed"
            if ending == "cancelled":
                consumer.poll(0)
                raise KeyboardInterrupt

    failure = {"cancelled": (asyncio.CancelledError, KeyboardInterrupt)}.get(ending, AssertionError)
    with contextlib.nullcontext() if ending in ("close", "break") else pytest.raises(failure):
        if is_threaded:
            consume_in_thread()
        else:
            asyncio.run(consume())

    async def committed() -> int:
        async with Consumer[bytes, bytes](served, settings) as consumer:
            (found,) = (await consumer.committed([TopicPartition(topic, 0)])).values()
            return found or 0

    assert asyncio.run(committed()) == expected


@pytest.mark.parametrize("ending", ["close", "unsubscribe"])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize("is_threaded", [False, True])
def test_callbacks(
    served: str, served_topic: Callable[..., str], protocol: str, ending: str, is_threaded: bool
) -> None:
    """Rebalance callbacks may seek, pause, ask for positions and commit, also when the consumer leaves."""
    topic = served_topic(1)
    place = TopicPartition(topic, 0)
    settings = {**EARLIEST, "group.id": topic, "group.protocol": protocol, "enable.auto.commit": False}
    produce_values(served, topic, [b"%d" % number for number in range(10)])
    told: list[Any] = []

    async def consume() -> None:
        async def on_assigned(places: list[TopicPartition]) -> None:
            consumer.seek(place, 5)
            consumer.pause([place])
            told.append(("assigned", places, await consumer.position(place), consumer.paused()))
            consumer.resume([place])

        async def on_revoked(places: list[TopicPartition]) -> None:
            told.append(("revoked", places, await consumer.position(place)))
            await consumer.commit({place: 7})

        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic], on_assigned=on_assigned, on_revoked=on_revoked)
            assert await read(consumer, 5) == [b"%d" % number for number in range(5, 10)]
            if ending == "unsubscribe":
                await consumer.unsubscribe()

    def consume_in_thread() -> None:
        def on_assigned(places: list[TopicPartition]) -> None:
            consumer.seek(place, 5)
            consumer.pause([place])
            told.append(("assigned", places, consumer.position(place), consumer.paused()))
            consumer.resume([place])

        def on_revoked(places: list[TopicPartition]) -> None:
            told.append(("revoked", places, consumer.position(place)))
            consumer.commit({place: 7})

        with ThreadConsumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic], on_assigned=on_assigned, on_revoked=on_revoked)
            values: list[bytes] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(values) < 5:
                assert time.monotonic() < deadline, (values, consumer.health())
                values += [record.value for record in consumer.poll()]
            assert values == [b"%d" % number for number in range(5, 10)]
            if ending == "unsubscribe":
                consumer.unsubscribe()

    async def committed() -> dict[TopicPartition, int | None]:
        async with Consumer[bytes, bytes](served, settings) as consumer:
            return await consumer.committed([place])

    if is_threaded:
        consume_in_thread()
    else:
        asyncio.run(consume())
    assert told == [("assigned", [place], 5, [place]), ("revoked", [place], 10)]
    assert asyncio.run(committed()) == {place: 7}


@pytest.mark.parametrize("is_threaded", [False, True])
def test_callback_errors(served: str, served_topic: Callable[..., str], is_threaded: bool) -> None:
    """The poll after a callback, and `close`, raise its exception. The consumer goes on, and is closed."""
    topic = served_topic(1)
    settings = {**EARLIEST, "group.id": topic}
    produce_values(served, topic, [b"v"])

    def fail(places: list[TopicPartition]) -> None:
        raise LookupError(f"{len(places)} partitions")

    async def consume() -> None:
        consumer = Consumer[bytes, bytes](served, settings)
        await consumer.start()
        consumer.subscribe([topic], on_assigned=fail, on_revoked=fail)
        with pytest.raises(LookupError, match="1 partitions"):
            await consumer.poll(DEADLINE_S)
        assert await read(consumer, 1) == [b"v"]
        with pytest.raises(LookupError, match="1 partitions"):
            await consumer.close()
        await consumer.close()

    def consume_in_thread() -> None:
        consumer = ThreadConsumer[bytes, bytes](served, settings)
        consumer.start()
        consumer.subscribe([topic], on_assigned=fail, on_revoked=fail)
        with pytest.raises(LookupError, match="1 partitions"):
            consumer.poll(DEADLINE_S)
        assert [record.value for record in consumer.poll(DEADLINE_S)] == [b"v"]
        with pytest.raises(LookupError, match="1 partitions"):
            consumer.close()
        consumer.close()

    if is_threaded:
        consume_in_thread()
    else:
        asyncio.run(consume())


@pytest.mark.parametrize("is_threaded", [False, True])
def test_a_callback_calls_what_waits_for_it(
    served: str, served_topic: Callable[..., str], is_threaded: bool
) -> None:
    """`poll`, `unsubscribe` and `close` are refused in callbacks. On asyncio, the latter two took 30 s."""
    topic = served_topic(1)
    settings = {**EARLIEST, "group.id": topic}
    produce_values(served, topic, [b"v"])
    refused: list[str] = []
    calls = ("poll", "unsubscribe", "close")

    async def consume() -> None:
        async def call(places: list[TopicPartition]) -> None:
            for name in calls:
                with pytest.raises(RuntimeError, match="a rebalance callback can't call poll, unsub"):
                    await getattr(consumer, name)()
                refused.append(name)

        async def call_once_more(places: list[TopicPartition]) -> None:
            await consumer.close()

        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic], on_assigned=call, on_revoked=call_once_more)
            assert await read(consumer, 1) == [b"v"]
            with pytest.raises(RuntimeError, match="a rebalance callback can't call"):
                await consumer.close()

    def consume_in_thread() -> None:
        def call(places: list[TopicPartition]) -> None:
            for name in calls:
                with pytest.raises(RuntimeError, match="a rebalance callback can't call poll, unsub"):
                    getattr(consumer, name)()
                refused.append(name)

        with ThreadConsumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic], on_assigned=call, on_revoked=lambda places: consumer.close())
            assert [record.value for record in consumer.poll(DEADLINE_S)] == [b"v"]
            with pytest.raises(RuntimeError, match="a rebalance callback can't call"):
                consumer.close()

    began = time.monotonic()
    if is_threaded:
        consume_in_thread()
    else:
        asyncio.run(consume())
    assert refused == list(calls)
    assert time.monotonic() - began < CLOSE_TIMEOUT_S


def test_assigned_partitions_seek_and_pause(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def consume() -> None:
        async with Producer[bytes, bytes](served) as producer:
            for number in range(50):
                await producer.send(topic, b"%d" % number, partition=0, timestamp=1_000 + number)
            await producer.send(topic, b"other", partition=1)
        async with Consumer[bytes, bytes](served, EARLIEST) as consumer:
            consumer.assign([first, second])
            consumer.pause([first])
            assert await read(consumer, 1) == [b"other"]
            assert consumer.paused() == [first]
            consumer.resume([first])
            consumer.seek(first, 45)
            assert await read(consumer, 5) == [b"%d" % number for number in range(45, 50)]
            assert await consumer.position(first) == 50
            assert consumer.high_watermark(first) == 50
            assert await consumer.beginning_offsets([first]) == {first: 0}
            assert await consumer.end_offsets([first, second]) == {first: 50, second: 1}
            assert await consumer.offsets_for_times({first: 1_030, second: 2**50}) == {
                first: 30,
                second: None,
            }
            consumer.seek_to_beginning([first])
            assert (await read(consumer, 50))[0] == b"0"
            consumer.seek_to_end([first])
            assert await consumer.poll(0.3) == []

    asyncio.run(consume())


def test_a_second_member_gets_its_share_and_gives_it_back(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic(4)
    settings = {**EARLIEST, "group.id": topic}

    async def consume() -> None:
        seen: list[int] = []
        revoked: list[TopicPartition] = []

        async def loop(consumer: Consumer[bytes, bytes], is_over: asyncio.Event) -> None:
            while not is_over.is_set():
                seen.extend(int(record.value) for record in await consumer.poll(0.2))

        async def until(is_true: Callable[[], bool]) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while not is_true():
                assert time.monotonic() < deadline, (first.health(), first.assignment())
                await asyncio.sleep(0.05)

        async with (
            Producer[bytes, bytes](served) as producer,
            Consumer[bytes, bytes](served, settings) as first,
        ):
            first.subscribe([topic], on_revoked=revoked.extend)
            first_ends = asyncio.Event()
            first_reads = asyncio.create_task(loop(first, first_ends))
            await until(lambda: len(first.assignment()) == 4)
            async with Consumer[bytes, bytes](served, settings) as second:
                second.subscribe([topic])
                second_ends = asyncio.Event()
                second_reads = asyncio.create_task(loop(second, second_ends))
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert len(revoked) == 2
                for number in range(200):
                    await producer.send(topic, b"%d" % number, partition=number % 4)
                await producer.flush()
                await until(lambda: len(seen) >= 200)
                second_ends.set()
                await second_reads
            await until(lambda: len(first.assignment()) == 4)
            for number in range(200, 300):
                await producer.send(topic, b"%d" % number, partition=number % 4)
            await until(lambda: len(set(seen)) >= 300)
            first_ends.set()
            await first_reads
        assert sorted(set(seen)) == list(range(300))

    asyncio.run(consume())


def test_a_pattern_subscribes_to_topics(served: str, served_topic: Callable[..., str]) -> None:
    topics = [served_topic(), served_topic()]
    prefix = topics[0].rsplit("-", 1)[0]

    async def consume() -> None:
        async with Producer[bytes, bytes](served) as producer:
            for topic in topics:
                await producer.send(topic, topic.encode())
        async with Consumer[bytes, bytes](served, {**EARLIEST, "group.id": prefix}) as consumer:
            consumer.subscribe(pattern=f"{prefix}-[0-9]+")
            assert sorted(await read(consumer, 2)) == sorted(topic.encode() for topic in topics)

    asyncio.run(consume())


def test_a_bad_record_does_not_hide_the_others(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    produce_values(served, topic, [b'{"n":1}', b"not JSON", b'{"n":3}'])

    async def consume() -> None:
        async with Consumer[bytes, Any](served, EARLIEST, value_deserializer=json_deserializer) as consumer:
            consumer.assign([(topic, 0)])
            records = []
            while len(records) < 3:
                records += await consumer.poll(1)
        assert [record.error is None for record in records] == [True, False, True]
        assert records[0].value == {"n": 1} and records[2].value == {"n": 3}
        assert records[1].value_bytes == b"not JSON"
        with pytest.raises(DeserializationError, match="offset 1 can't be read"):
            _ = records[1].value

    asyncio.run(consume())


def test_automatic_commits_store_only_what_was_dealt_with(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic()
    place = TopicPartition(topic, 0)
    produce_values(served, topic, [b"%d" % number for number in range(10)])
    settings = {**EARLIEST, "group.id": topic, "auto.commit.interval.ms": 50, "max.poll.records": 4}

    async def consume() -> None:
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            records = []
            while not records:
                records = await consumer.poll(1)
            await asyncio.sleep(0.5)  # several automatic commits
            assert (await consumer.committed([place]))[place] in (None, 0)
            await consumer.poll(1)
            deadline = time.monotonic() + DEADLINE_S
            while await consumer.committed([place]) != {place: 4}:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(consume())


def test_no_committed_offset_and_no_reset_policy(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()

    async def consume() -> None:
        settings = {"group.id": topic, "auto.offset.reset": "none"}
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(OffsetOutOfRangeError, match=r"auto\.offset\.reset is none"):
                for _ in range(20):
                    await consumer.poll(1)

    asyncio.run(consume())


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_slow_application_joins_again(served: str, served_topic: Callable[..., str], protocol: str) -> None:
    topic = served_topic()
    produce_values(served, topic, [b"1", b"2"])
    settings = {**EARLIEST, "group.id": topic, "max.poll.interval.ms": 1_000, "max.poll.records": 1}
    settings["group.protocol"] = protocol

    async def consume() -> None:
        async with Consumer[bytes, bytes](served, settings) as consumer:
            consumer.subscribe([topic])
            assert await read(consumer, 1) == [b"1"]
            await asyncio.sleep(1.5)
            health = consumer.health()
            assert health.state == "stuck" and "max.poll.interval.ms" in health.reason, health
            assert not health.is_healthy
            with pytest.raises(StaleMemberError):
                await consumer.commit({TopicPartition(topic, 0): 1})
            assert await read(consumer, 1) == [b"1"], "the first record was not committed"
            assert consumer.health().state == "joined"

    asyncio.run(consume())


def test_a_static_member_keeps_its_partition_after_it_unsubscribed(
    served: str, served_topic: Callable[..., str]
) -> None:
    topic = served_topic()
    settings = {**EARLIEST, "group.id": topic}

    async def until(consumer: Consumer[bytes, bytes], is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, (consumer.health(), consumer.assignment())
            await consumer.poll(0.1)

    async def consume() -> None:
        static = {**settings, "group.instance.id": "one"}
        async with (
            Consumer[bytes, bytes](served, static) as first,
            Consumer[bytes, bytes](served, settings) as second,
        ):
            first.subscribe([topic])
            await until(first, lambda: len(first.assignment()) == 1)
            await first.unsubscribe()
            second.subscribe([topic])
            await until(second, lambda: second.health().state == "joined")
            assert not second.assignment()
            first.subscribe([topic])
            await until(first, lambda: len(first.assignment()) == 1)
            assert not second.assignment()

    asyncio.run(consume())


def test_the_consumer_for_threads(served: str, served_topic: Callable[..., str]) -> None:
    topic = served_topic()
    produce_values(served, topic, [b"%d" % number for number in range(100)])
    place = TopicPartition(topic, 0)
    with ThreadConsumer[bytes, bytes](served, {**EARLIEST, "group.id": topic}) as consumer:
        consumer.subscribe([topic])
        seen = []
        for record in consumer:
            seen.append(int(record.value))
            if len(seen) == 100:
                break
        assert seen == list(range(100))
        assert consumer.position(place) == 100
        consumer.commit()
        assert consumer.committed([place]) == {place: 100}
        assert consumer.health().state == "joined"


def test_the_position_is_checked_at_the_next_leader(
    own_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TopicPartition("epochs", 0)
    create_topic(own_broker.bootstrap, place.topic, 1)
    answers: list[dict[TopicPartition, EpochEnd]] = []
    original = GroupCalls.epoch_ends

    async def epoch_ends(calls: GroupCalls, node_id: int, checks: Any) -> Any:
        answers.append(await original(calls, node_id, checks))
        return answers[-1]

    monkeypatch.setattr(GroupCalls, "epoch_ends", epoch_ends)

    async def consume() -> None:
        settings = {"auto.offset.reset": "none", "metadata.max.age.ms": 500}
        async with Consumer[bytes, bytes](own_broker.bootstrap, settings) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            produce_values(own_broker.bootstrap, place.topic, [b"1", b"2"])
            assert await read(consumer, 2) == [b"1", b"2"]
            await asyncio.to_thread(own_broker.stop)
            await asyncio.to_thread(own_broker.start)
            await asyncio.to_thread(produce_values, own_broker.bootstrap, place.topic, [b"3"])
            assert await read(consumer, 1) == [b"3"]
        assert answers and answers[0][place].error_code == 0
        assert answers[0][place].end_offset >= 2

    asyncio.run(consume())
