"""The producer's shell: what becomes of records at a close, and how long a send waits."""

from __future__ import annotations

import asyncio
import pickle
import threading
import uuid
from typing import Any, cast

import pytest

import tidelog.aio as aio
import tidelog.client as threads
from brokerlab.client_parts import ClientParts
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producing.producer_batch import ProducerIdReceived
from tidelog.client.errors import ClosedError, TopicAuthorizationError, UnknownTopicError
from tidelog.client.shell.connection import Reply
from tidelog.client.shell.producing import accumulator
from tidelog.client.shell.producing.delivery import BatchDelivery, Delivery
from tidelog.client.shell.producing.producer import Producer
from tidelog.client.shell.producing.sender import produce_request
from tidelog.client.shell.tasks import now_ms
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.records.record import iterate_records
from tidelog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


class OvertakenLock:
    """A lock for which an append waits until the producer has been closed."""

    def __init__(self, producer: Producer[bytes, bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._producer: Producer[bytes, bytes] | None = producer
        self._loop = loop

    def __enter__(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            asyncio.run_coroutine_threadsafe(producer.close(flushes=False), self._loop).result()

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("how", ["one", "many", "many with keys"])
def test_a_record_that_a_thread_adds_during_a_close_has_an_outcome(how: str) -> None:
    """Its delivery was never done, so a thread waited for it for ever."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = ClientParts(producer)

    def add() -> None:
        if how == "one":
            producer.records.append("t", b"v", None, 0, (), 0)
        else:
            keys = [b"k"] if how == "many with keys" else None
            producer.records.append_batch(producer.records.encoder.encode("t", [b"v"], keys, None, 0, 0))

    async def scenario() -> None:
        shell.tasks.start()
        topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
        shell.core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)
        shell.guard_with(OvertakenLock(producer, asyncio.get_running_loop()))
        with pytest.raises(ClosedError):
            await asyncio.to_thread(add)
        assert not shell.core.pending_batches()

    asyncio.run(scenario())


class PreemptedLock:
    """A lock after whose first release the thread stands still until the producer has ended."""

    def __init__(self, producer: Producer[bytes, bytes], thread: LoopThread) -> None:
        self._lock = threading.Lock()
        self._producer: Producer[bytes, bytes] | None = producer
        self._thread = thread

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        producer, self._producer = self._producer, None
        if producer is not None:
            self._thread.call(producer.close(flushes=False))
            self._thread.stop()


@pytest.mark.parametrize("how", ["one", "many", "many with keys"])
def test_a_record_that_a_thread_adds_before_a_close_has_an_outcome(how: str) -> None:
    """The thread then called a loop that was closed, and `send` raised a plain RuntimeError."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = ClientParts(producer)
    thread = LoopThread("test")

    async def begin() -> None:
        shell.tasks.start()
        topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
        shell.core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)

    thread.call(begin())
    shell.guard_with(PreemptedLock(producer, thread))
    if how == "one":
        added = producer.records.append("t", b"v", None, 0, (), 0)
        assert isinstance(added, Delivery)
        assert str(added.error()) == "the producer was closed"
    else:
        keys = [b"k"] if how == "many with keys" else None
        rows = producer.records.encoder.encode("t", [b"v"], keys, None, 0, 0)
        assert producer.records.append_batch(rows)
        ((_, error),) = rows.delivery.errors()
        assert str(error) == "the producer was closed"
    with pytest.raises(ClosedError):
        producer.records.append("t", b"v", None, 0, (), 0)


@pytest.mark.parametrize("is_still_refused", [True, False])
def test_a_send_asks_again_for_a_topic_that_was_refused(
    is_still_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first send after the ACL was added failed with the refusal from before."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = ClientParts(producer)
    refused = TopicView("t", ZERO_TOPIC_ID, (), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    permitted = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
    now = refused if is_still_refused else permitted

    async def answer(known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        shell.step(MetadataReceived((Node(1, "h", 1),), (now,)))

    async def scenario() -> None:
        shell.tasks.start()
        shell.core.partition_count("t")
        shell.core.step(MetadataReceived((Node(1, "h", 1),), (refused,)), 0)
        for send in (lambda: producer.send("t", b"v"), lambda: producer.partitions_for("t")):
            async with asyncio.timeout(1):
                if is_still_refused:
                    with pytest.raises(TopicAuthorizationError):
                        await send()
                else:
                    await send()

    monkeypatch.setattr(shell.driver, "_request_metadata", answer)
    asyncio.run(scenario())


def test_a_send_takes_no_refusal_from_before_it_from_an_answer_about_other_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response to a refresh arrived first, and the send failed with the refusal from before the ACL."""
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = ClientParts(producer)
    other = TopicView("other", uuid.UUID(int=1), (PartitionLeader(1, 0),))
    refused = TopicView("t", ZERO_TOPIC_ID, (), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    permitted = TopicView("t", uuid.UUID(int=2), (PartitionLeader(1, 0),))
    asked: list[tuple[str, ...]] = []

    async def answer(known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        asked.append(wanted)
        if wanted:
            shell.step(MetadataReceived((Node(1, "h", 1),), (other, permitted)))

    async def scenario() -> None:
        shell.tasks.start()
        shell.core.partition_count("t")
        shell.core.step(MetadataReceived((Node(1, "h", 1),), (other, refused)), 0)
        shell.core.metadata.is_needed = True
        shell.pump()  # a refresh is on its way, which does not name the topic
        await asyncio.sleep(0)
        assert asked == [()]
        sending = asyncio.create_task(producer.send("t", b"v"))
        await asyncio.sleep(0)
        shell.step(MetadataReceived((Node(1, "h", 1),), (other,)))
        async with asyncio.timeout(5):
            await sending
        assert asked == [(), ("t",)]

    monkeypatch.setattr(shell.driver, "_request_metadata", answer)
    asyncio.run(scenario())


class Line:
    """A connection whose broker stores all batches of each request. It checks that they can be read."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, list[bytes | None]]] = []

    def version_for(self, request: ProduceRequest, **versions: int) -> int:
        return 12

    def send(self, request: ProduceRequest, version: int, timeout_s: float) -> asyncio.Future[Reply]:
        self.send_unanswered(request, version)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.set_result(Reply(1, memoryview(b"")))
        return reply

    def send_unanswered(self, request: ProduceRequest, version: int) -> None:
        for topic in request.topic_data:
            for row in topic.partition_data:
                values = [record.value for record in iterate_records(bytes(row.records or b""))]
                self.written.append((TopicPartition(topic.name, row.index), values))

    def decode(self, request: ProduceRequest, version: int, reply: Reply) -> ProduceResponse:
        return ProduceResponse(
            [
                TopicProduceResponse(
                    topic.name,
                    partition_responses=[PartitionProduceResponse(row.index) for row in topic.partition_data],
                )
                for topic in request.topic_data
            ]
        )


@pytest.mark.parametrize("acks", ["all", "0"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("how", ["one expires", "all expire", "aborted"])
def test_batches_that_end_while_they_wait_for_a_connection_are_not_written(
    how: str, compression: str, acks: str
) -> None:
    """They have no records any more. Brokers stored an empty body that claimed records, and no consumer could
    read the partition beyond it.
    """
    settings = {
        "linger.ms": 10_000,
        "compression.type": compression,
        "acks": acks,
        "enable.idempotence": acks == "all",
    }
    producer = Producer[bytes, bytes]("127.0.0.1:1", settings)
    shell = ClientParts(producer)
    core, line = shell.core, Line()

    async def scenario() -> None:
        shell.tasks.start()
        start_ms = now_ms()
        topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),) * 2)
        core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), start_ms)
        core.step(ProducerIdReceived(7, 0), start_ms)
        first = core.append("t", 0, 0, None, b"first", (), start_ms - 100_000)
        second = core.append("t", 1, 0, None, b"second", (), start_ms - 95_000)
        (request,) = core.poll(start_ms - 80_000)
        assert request.batches == (first, second)
        match how:
            case "one expires":
                core.poll(start_ms + 20_000)
            case "all expire":
                core.poll(start_ms + 25_000)
            case _:
                core.fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "aborted"))
        left = [batch for batch in request.batches if not batch.is_done]
        assert len(left) == (how == "one expires")
        shell.write(request, line)
        for _ in range(10):
            await asyncio.sleep(0)
        assert line.written == [(TopicPartition("t", 1), [b"second"])] * len(left)
        assert all(batch.is_done and batch.error is None for batch in left)
        assert not core.pending_batches() and not core._requests, "the request is still in flight"
        await shell.tasks.stop()

    asyncio.run(scenario())


def started_producer(**serializers: Any) -> Producer[Any, Any]:
    """Returns a producer that knows the topic `t` and whose pump does not run."""
    producer = Producer[Any, Any]("127.0.0.1:1", **serializers)
    shell = ClientParts(producer)
    topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
    shell.core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), 0)
    shell.stop_pump()
    return producer


def records_of(producer: Producer[Any, Any]) -> list[tuple[bytes | None, bytes | None]]:
    found = []
    for batch in ClientParts(producer).core.pending_batches():
        batch.close()
        encoded = batch.encode(is_transactional=False)
        found += [(record.key, record.value) for record in iterate_records(encoded)]
    return found


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_like_keys_and_values_are_sent(kind: Any) -> None:
    """The compiled client refused them."""
    producer = started_producer()

    async def scenario() -> None:
        await producer.send("t", kind(b"v1"), key=kind(b"k1"))
        await producer.send_batch("t", [kind(b"v2"), None])
        await producer.send_batch("t", [b"v3"], keys=[kind(b"k3")])

    asyncio.run(scenario())
    assert records_of(producer) == [(b"k1", b"v1"), (None, b"v2"), (None, None), (b"k3", b"v3")]
    rows = producer.records.encoder.encode("t", [kind(b"v")], [kind(b"k")], None, None, None)
    assert rows.keys is not None
    assert {type(rows.keys[0]), type(rows.values[0])} == {bytes}, "the compiled core takes nothing else"


@pytest.mark.parametrize("field", ["key", "value"])
def test_a_wrong_type_is_refused_by_the_name_of_its_field(field: str) -> None:
    async def scenario(producer: Producer[Any, Any], content: Any, *, is_batch: bool) -> None:
        key, value = (content, b"v") if field == "key" else (b"k", content)
        if is_batch:
            await producer.send_batch("t", [value], keys=[key])
        else:
            await producer.send("t", value, key=key)

    def same(_topic: str, content: Any) -> Any:
        return content

    for producer in (started_producer(), started_producer(key_serializer=same, value_serializer=same)):
        for is_batch in (False, True):
            with pytest.raises(
                TypeError, match=f"the {field} of a record for topic 't' is of type str: give"
            ):
                asyncio.run(scenario(producer, "text", is_batch=is_batch))
        assert records_of(producer) == []


def with_a_record(producer: Producer[bytes, bytes]) -> BatchDelivery:
    """Begins to use a producer without a broker, and adds a record to its buffer."""
    shell = ClientParts(producer)
    shell.tasks.start()
    topic = TopicView("t", ZERO_TOPIC_ID, (PartitionLeader(1, 0),))
    shell.core.step(MetadataReceived((Node(1, "h", 1),), (topic,)), now_ms())
    rows = producer.records.encoder.encode("t", [b"v", b"w"], None, None, 0, 0)
    assert producer.records.append_batch(rows)
    assert rows.are_added
    return rows.delivery


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tidelog.client"]


@pytest.mark.parametrize("how", ["timeout", "second cancellation", "without a flush"])
def test_a_close_states_how_many_records_are_left(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        producer = Producer[bytes, bytes]("127.0.0.1:1", {"linger.ms": 60_000})
        delivery = with_a_record(producer)
        timeout_s = 0.0 if how == "timeout" else None
        closing = asyncio.create_task(producer.close(flushes=how != "without a flush", timeout_s=timeout_s))
        for _ in range(3):
            await asyncio.sleep(0)
        if how == "second cancellation":
            closing.cancel()
        await asyncio.wait([closing], timeout=5)
        ((_, error),) = delivery.errors()
        assert str(error) == "the producer was closed"
        with pytest.raises(ClosedError):
            await producer.send("t", b"v")

    asyncio.run(scenario())
    left = "the producer was closed before 2 of its records were acknowledged, and they may be lost"
    assert left in lines(caplog)


@pytest.mark.parametrize("how", ["cancelled", "interrupted", "failed", None])
def test_the_end_of_a_block_flushes_and_is_bounded_only_after_a_cancellation(
    how: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes: list[float | None] = []

    async def close(*, flushes: bool = True, timeout_s: float | None = None) -> None:
        assert flushes
        closes.append(timeout_s)

    async def scenario() -> None:
        producer = Producer[bytes, bytes]("127.0.0.1:1", {"cancelled.flush.timeout.ms": 250})
        monkeypatch.setattr(producer, "close", close)
        errors = {
            "cancelled": asyncio.CancelledError(),
            "interrupted": KeyboardInterrupt(),
            "failed": ValueError(),
        }
        error = None if how is None else errors[how]
        await producer.__aexit__(None if error is None else type(error), error, None)

    asyncio.run(scenario())
    assert closes == [0.25 if how in ("cancelled", "interrupted") else None]


def test_a_producer_whose_coroutine_nobody_runs_any_more_warns(caplog: pytest.LogCaptureFixture) -> None:
    """`close` would wait in a coroutine that is being closed, which is a RuntimeError."""

    async def scenario() -> None:
        producer = Producer[bytes, bytes]("127.0.0.1:1", {"linger.ms": 60_000})
        with_a_record(producer)
        with pytest.warns(ResourceWarning, match="not closed, and 2 of its records are not acknowledged"):
            await producer.__aexit__(GeneratorExit, GeneratorExit(), None)

    asyncio.run(scenario())
    assert any("2 of its records" in line and "may be lost" in line for line in lines(caplog))


def test_the_end_of_all_tasks_flushes_an_open_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` cancels all tasks at its end, also those that would have sent the records."""
    line = Line()
    opened: list[int] = []

    producer = Producer[bytes, bytes]("127.0.0.1:1", {"linger.ms": 60_000, "retry.backoff.ms": 0})
    shell = ClientParts(producer)

    async def scenario() -> BatchDelivery:

        async def connect(node_id: int) -> Line:
            opened.append(node_id)
            if len(opened) == 1:
                await asyncio.get_running_loop().create_future()  # until the cancellation
            return line

        async def nothing(*arguments: object) -> None: ...

        monkeypatch.setattr(shell.network, "start", nothing)
        monkeypatch.setattr(shell.driver, "_request_metadata", nothing)
        monkeypatch.setattr(shell.network, "broker", connect)
        await producer.start()
        delivery = with_a_record(producer)
        shell.step(ProducerIdReceived(7, 0))
        shell.core.is_flushing = True
        shell.pump()
        await asyncio.sleep(0)
        assert opened == [1]
        return delivery

    delivery = asyncio.run(scenario())
    with pytest.warns(ResourceWarning, match="0 of its records"):
        producer.report_unclosed()
    assert line.written == [(TopicPartition("t", 0), [b"v", b"w"])]
    assert delivery.is_done and not delivery.errors()


@pytest.mark.parametrize("how", ["send", "send_batch", "send_batch with keys"])
@pytest.mark.parametrize("appears", [False, True])
def test_a_partition_that_does_not_exist_is_named_after_new_metadata(
    appears: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The send waited for a minute, and then named the buffer."""
    monkeypatch.setattr(accumulator, "NEW_PARTITION_WAIT_S", 0.3)
    producer = Producer[bytes, bytes]("127.0.0.1:1")
    shell = ClientParts(producer)
    answers = 0

    async def answer(known: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        nonlocal answers
        assert wanted == ("t",)
        answers += 1
        count = 78 if appears and answers == 2 else 3
        topic = TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),) * count)
        shell.step(MetadataReceived((Node(1, "h", 1),), (topic,)))

    async def send() -> int:
        if how == "send":
            return (await producer.send("t", b"v", partition=77)).partition
        keys = [b"k"] if how == "send_batch with keys" else None
        return len(await producer.send_batch("t", [b"v"], keys=keys, partition=77))

    async def scenario() -> None:
        shell.tasks.start()
        async with asyncio.timeout(10):
            if appears:
                assert await send() == (77 if how == "send" else 1)
            else:
                with pytest.raises(UnknownTopicError) as raised:
                    await send()
                assert str(raised.value) == "topic 't' has no partition 77: it has 3, from 0 to 2"
        assert answers >= 2
        producer.report_unclosed()

    monkeypatch.setattr(shell.driver, "_request_metadata", answer)
    with pytest.warns(ResourceWarning):
        asyncio.run(scenario())


def test_a_negative_partition_is_refused_at_once() -> None:
    producer = started_producer()

    async def scenario() -> None:
        async with asyncio.timeout(1):
            with pytest.raises(
                UnknownTopicError, match="topic 't' has no partition -1: it has 1, from 0 to 0"
            ):
                await producer.send("t", b"v", partition=-1)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_wrong_choice_of_a_partitioner_is_named_at_once(is_batch: bool) -> None:
    producer = started_producer(partitioner=lambda topic, key, value, count: count)

    async def scenario() -> None:
        async with asyncio.timeout(1):
            with pytest.raises(
                ValueError, match="partitioner's choice is wrong: topic 't' has no partition 1:"
            ):
                await (producer.send_batch("t", [b"v"]) if is_batch else producer.send("t", b"v"))

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [12, 13])
def test_a_request_names_the_topic_for_which_its_batches_were_numbered(version: int) -> None:
    """A request that waits for its connection took the id of the topic that was created again meanwhile."""
    producer = Producer[bytes, bytes]("127.0.0.1:1", {"linger.ms": 0})
    shell = ClientParts(producer)
    core = shell.core
    first, second = (TopicView("t", uuid.UUID(int=number), (PartitionLeader(1, 0),)) for number in (1, 2))
    core.step(MetadataReceived((Node(1, "h", 1),), (first,)), 0)
    core.step(ProducerIdReceived(7, 0), 0)
    core.append("t", 0, 0, None, b"v", (), 0)
    (request,) = core.poll(0)
    core.step(MetadataReceived((Node(1, "h", 1),), (second,)), 1)

    class Broker(Line):
        def version_for(self, request: ProduceRequest, **versions: int) -> int:
            return version

    made, chosen = produce_request(cast("Any", Broker()), request.batches, producer.settings)
    assert (made.topic_data[0].topic_id, chosen) == (first.topic_id, version)
    (batch,) = request.batches
    assert batch.topic_id == (first.topic_id if version == 13 else ZERO_TOPIC_ID), "12 does not send the id"


def test_what_belongs_to_a_process_cannot_be_pickled() -> None:
    """The copy of a delivery waited for ever, and the errors of clients named a lock."""
    producer = started_producer()
    rows = producer.records.encoder.encode("t", [b"v"], None, None, 0, 0)
    assert producer.records.append_batch(rows)
    batches, delivery = rows.delivery, producer.records.append("t", b"v", None, 0, (), 0)
    clients = (
        producer,
        aio.Consumer("127.0.0.1:1"),
        aio.ShareConsumer("127.0.0.1:1", {"group.id": "g"}),
        aio.Admin("127.0.0.1:1"),
        threads.Producer("127.0.0.1:1"),
        threads.Admin("127.0.0.1:1"),
    )
    for each in (delivery, batches, *clients):
        with pytest.raises(TypeError, match=r"belongs to .*process.* and cannot be pickled: "):
            pickle.dumps(each)
