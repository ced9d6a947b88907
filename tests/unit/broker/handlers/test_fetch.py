"""The size of Fetch responses, when they wait, and what ends the wait."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.in_memory_broker import InMemoryBroker, make_context
from tidelog.broker.handlers import fetch
from tidelog.broker.handlers.fetch import Fetch
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.segment import FileRange
from tidelog.broker.requests import waiting
from tidelog.broker.requests.client_fetch_sessions import ClientFetchPosition
from tidelog.broker.requests.request import PARKED, RequestContext
from tidelog.broker.requests.waiting import MAX_UNWATCHED_MS
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, StopReplica
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

VERSION = 12


class Client:
    """A connection, as far as handlers use it."""

    def __init__(self) -> None:
        self.answers: list[FetchResponse] = []
        self.is_closed = False
        self.contexts: list[Any] = []
        self.version = VERSION
        self.budget_key = "10.0.0.1"
        self.loop: Any = SimpleNamespace(call_soon=lambda call: call())

    def close(self) -> None:
        self.is_closed = True
        for context in self.contexts:
            if context.on_abandoned is not None:
                context.on_abandoned()

    def context(self) -> RequestContext:
        context = make_context(self.version, connection=self, reply=self.answers.append)
        self.contexts.append(context)
        return context


def ask(
    lab: InMemoryBroker,
    client: Client,
    wanted: dict[tuple[str, int], int],
    partition_max_bytes: int = 1 << 20,
    **fields: Any,
) -> FetchResponse | None:
    """Returns the response, or None while the request waits."""
    topics: dict[str, FetchTopic] = {}
    for (topic, partition), offset in wanted.items():
        topics.setdefault(topic, FetchTopic(topic=topic, partitions=[])).partitions.append(
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        )
    fields = {"max_wait_ms": 500, "min_bytes": 1, "topics": list(topics.values()), **fields}
    answer = lab.handle(ApiKey.FETCH, FetchRequest(**fields), client.context())
    return None if answer is PARKED else cast(FetchResponse, answer)


def parts(answer: FetchResponse | None) -> dict[tuple[str, int], PartitionData]:
    assert answer is not None
    return {
        (topic.topic, part.partition_index): part for topic in answer.responses for part in topic.partitions
    }


def sizes(answer: FetchResponse | None) -> dict[tuple[str, int], int]:
    return {key: len(part.records or b"") for key, part in parts(answer).items()}


def append_bytes(lab: InMemoryBroker, size_bytes: int, partition: int = 0, topic: str = "t") -> int:
    """Appends one batch of about `size_bytes` and returns its exact size."""
    value = bytes(max(size_bytes - 80, 1))
    batch = build_batch([Record(0, lab.clock.wall_ms(), None, value, [])])
    lab.broker.hosted.leader_replica(topic, partition).append(memoryview(batch), 1, 9, lab.clock.wall_ms())
    return len(batch)


def segment_references(lab: InMemoryBroker) -> int:
    return sum(
        segment.references
        for replica in lab.broker.hosted.replicas.values()
        for segment in replica.log.segments
    )


@pytest.fixture
def client() -> Client:
    return Client()


# -- size


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(st.integers(0, 2), st.integers(80, 60_000)), min_size=1, max_size=8),
    max_bytes=st.one_of(st.integers(-5, 100), st.integers(0, 200_000)),
    partition_max_bytes=st.one_of(st.integers(-5, 100), st.integers(0, 200_000)),
)
def test_limits_hold_but_one_batch_is_always_returned(
    make_broker: Callable[..., InMemoryBroker],
    batches: list[tuple[int, int]],
    max_bytes: int,
    partition_max_bytes: int,
) -> None:
    lab = make_broker()
    lab.add_topic("t", partitions=3)
    written: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for partition, size in batches:
        written[partition].append(append_bytes(lab, size, partition))
    answer = ask(
        lab,
        Client(),
        {("t", partition): 0 for partition in range(3)},
        partition_max_bytes=partition_max_bytes,
        max_bytes=max_bytes,
    )
    left, total = max_bytes, 0
    for partition in range(3):
        part = parts(answer)["t", partition]
        limit = min(left, partition_max_bytes)
        expected, room = 0, limit
        for size in written[partition]:
            if size > room and (total or expected):
                break
            expected += size
            room -= size
        assert len(part.records or b"") == expected
        total += expected
        left = max(left - expected, 0)
        if isinstance(part.records, FileRange):
            part.records.release()
    assert segment_references(lab) == 0


def test_the_brokers_own_limit_holds(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = make_broker({"fetch.max.bytes": "1024"})
    lab.add_topic("t", partitions=2)
    size = append_bytes(lab, 1000)
    append_bytes(lab, 1000, partition=1)
    answer = ask(lab, Client(), {("t", 0): 0, ("t", 1): 0})
    assert sizes(answer) == {("t", 0): size, ("t", 1): 0}


def test_small_ranges_are_read_and_the_rest_leave_by_sendfile(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t", partitions=4)
    for partition, size in enumerate((30_000, 40_000, 30_000, 30_000)):
        append_bytes(lab, size, partition)
    answer = ask(lab, client, {("t", partition): 0 for partition in range(4)})
    kinds = [type(part.records) for part in parts(answer).values()]
    assert kinds == [bytes, FileRange, bytes, FileRange]
    assert segment_references(lab) == 2


def test_a_small_range_that_is_not_in_the_page_cache_leaves_by_sendfile(
    lab: InMemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop must never wait for a disk."""
    lab.add_topic("t")
    append_bytes(lab, 1000)
    monkeypatch.setattr(fetch, "is_resident", lambda *_: False)
    answer = ask(lab, client, {("t", 0): 0})
    assert isinstance(parts(answer)["t", 0].records, FileRange)


def test_a_range_that_cannot_be_read_is_a_storage_error(
    lab: InMemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t")
    append_bytes(lab, 1000)

    def broken(self: FileRange) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileRange, "read", broken)
    answer = ask(lab, client, {("t", 0): 0})
    assert parts(answer)["t", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not parts(answer)["t", 0].records
    assert segment_references(lab) == 0


# -- waiting


def test_a_fetch_at_the_log_end_waits_for_the_first_batch(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t", partitions=2)
    assert ask(lab, client, {("t", 0): 0, ("t", 1): 0}) is None
    size = append_bytes(lab, 1000, partition=1)
    assert [sizes(answer) for answer in client.answers] == [{("t", 0): 0, ("t", 1): size}]
    assert len(lab.broker.waiting.fetch) == 0


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"min_bytes": 0}, {"min_bytes": -1}])
def test_a_fetch_without_max_wait_does_not_wait(
    lab: InMemoryBroker, client: Client, fields: dict[str, int]
) -> None:
    lab.add_topic("t")
    assert sizes(ask(lab, client, {("t", 0): 0}, **fields)) == {("t", 0): 0}


def test_the_wait_ends_with_the_available_records(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    assert ask(lab, client, {("t", 0): 0}, min_bytes=100_000) is None
    size = append_bytes(lab, 1000)
    lab.broker.timer.advance(499)
    assert not client.answers
    lab.broker.timer.advance(500)
    assert [sizes(answer) for answer in client.answers] == [{("t", 0): size}]


def test_min_bytes_counts_over_all_partitions(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t", partitions=2)
    assert ask(lab, client, {("t", 0): 0, ("t", 1): 0}, min_bytes=1900) is None
    append_bytes(lab, 1000)
    assert not client.answers
    append_bytes(lab, 1000, partition=1)
    assert len(client.answers) == 1
    assert segment_references(lab) == 0


def test_an_error_anywhere_ends_the_wait_at_once(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    answer = ask(lab, client, {("t", 0): 0, ("nowhere", 0): 0, ("t", 7): 0})
    assert {key: part.error_code for key, part in parts(answer).items()} == {
        ("t", 0): 0,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("offset", [-1, 2])
def test_an_offset_out_of_range(lab: InMemoryBroker, client: Client, offset: int) -> None:
    lab.add_topic("t")
    append_bytes(lab, 100)
    part = parts(ask(lab, client, {("t", 0): offset}))["t", 0]
    assert (part.error_code, part.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize(
    ("version", "known_epoch", "error"),
    [
        (10, 3, ErrorCode.FENCED_LEADER_EPOCH),
        (10, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (12, 3, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_a_partition_that_moves_away_ends_the_wait(
    lab: InMemoryBroker, client: Client, version: int, known_epoch: int, error: ErrorCode
) -> None:
    topic_id = lab.add_topic("t")
    client.version = version
    wanted = FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=known_epoch)
    assert ask(lab, client, {}, topics=[FetchTopic(topic="t", partitions=[wanted])]) is None
    moved = PartitionState("t", topic_id, 0, 2, 4, (2,), (1, 2), 7, partition_epoch=2)
    lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(1, 7, (moved,))))
    assert [parts(answer)["t", 0].error_code for answer in client.answers] == [error]


def test_a_topic_that_is_deleted_ends_the_wait(lab: InMemoryBroker, client: Client) -> None:
    topic_id = lab.add_topic("t")
    assert ask(lab, client, {("t", 0): 0}) is None
    stop = StopReplica(1, 7, (TopicPartition("t", 0),), delete=True, topic_ids={"t": topic_id})
    lab.runner.run(lab.commands.stop_replica(stop))
    assert len(client.answers) == 1


def test_a_closed_connection_ends_the_wait(lab: InMemoryBroker, client: Client) -> None:
    lab.add_topic("t")
    assert ask(lab, client, {("t", 0): 0}) is None
    client.close()
    assert len(lab.broker.waiting.fetch) == 0
    append_bytes(lab, 1000)
    lab.broker.timer.advance(10_000)
    assert not client.answers


def test_waiting_fetches_watch_a_limited_number_of_partitions(
    make_broker: Callable[..., InMemoryBroker], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them takes memory until the request is answered."""
    monkeypatch.setattr(waiting, "MAX_WATCHED_PARTITIONS", 8)
    lab = make_broker()
    lab.add_topic("t", partitions=3)
    three = {("t", partition): 0 for partition in range(3)}
    assert ask(lab, client, three) is None
    assert client.answers == []
    greedy = [Client() for _ in range(3)]
    for each in greedy:
        assert ask(lab, each, three, max_wait_ms=10_000) is None
    assert lab.broker.waiting.fetch.watched_count == 6
    lab.broker.timer.advance(MonotonicMs(lab.broker.timer.monotonic_ms() + MAX_UNWATCHED_MS - 1))
    assert not any(each.answers for each in greedy), "no client asks again at once"
    lab.broker.timer.advance(MonotonicMs(lab.broker.timer.monotonic_ms() + 1))
    assert sum(len(each.answers) for each in greedy) == 2


def test_a_wait_that_fails_closes_its_connection(
    lab: InMemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, its response would never be sent, and later requests would wait forever."""
    lab.add_topic("t")
    other = Client()
    assert ask(lab, client, {("t", 0): 0}) is None
    monkeypatch.setattr(client.contexts[0], "reply", lambda _: 1 / 0)
    assert ask(lab, other, {("t", 0): 0}) is None
    append_bytes(lab, 100_000)
    assert client.is_closed
    assert not other.is_closed
    assert len(other.answers) == 1
    assert segment_references(lab) == 1  # the response to the other request


# -- waits for many partitions

MANY = 100


@pytest.mark.parametrize("min_bytes", [1, 1 << 20])
def test_a_change_of_one_of_many_partitions_does_not_look_at_the_others(
    lab: InMemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    lab.add_topic("t", partitions=MANY)
    assert ask(lab, client, {("t", partition): 0 for partition in range(MANY)}, min_bytes=min_bytes) is None
    looked_at: list[object] = []
    find = Fetch._replica

    def counted(waiting: Fetch, position: ClientFetchPosition) -> Replica:
        looked_at.append(position.key.partition)
        return find(waiting, position)

    monkeypatch.setattr(Fetch, "_replica", counted)
    for partition in range(MANY):
        if min_bytes > 1:
            append_bytes(lab, 1000, partition)
        else:
            lab.broker.waiting.high_watermark_advanced(TopicPartition("t", partition))
    assert not client.answers
    assert looked_at == list(range(MANY))
    assert segment_references(lab) == 0


def test_many_fetches_of_many_partitions_are_answered_in_slices(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SLICE_MS", 0)
    lab.add_topic("t", partitions=MANY)
    clients = [Client() for _ in range(5)]

    async def answers_by_turn() -> list[int]:
        for client in clients:
            client.loop = asyncio.get_running_loop()
            assert ask(lab, client, {("t", partition): 0 for partition in range(MANY)}) is None
        append_bytes(lab, 100_000)
        clients[1].close()
        counts = []
        for _ in range(6):
            append_bytes(lab, 100_000)
            counts.append(sum(len(client.answers) for client in clients))
            await asyncio.sleep(0)
        return counts

    assert lab.runner.run(answers_by_turn()) == [0, 1, 1, 2, 3, 4]
    assert [len(client.answers) for client in clients] == [1, 0, 1, 1, 1]
    assert len(lab.broker.waiting.fetch) == 0


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(st.integers(0, 2), st.integers(80, 2_000)), max_size=8),
    waits_at=st.integers(0, 8),
    min_bytes=st.integers(1, 6_000),
    offset=st.integers(0, 1),
    end=st.sampled_from(["move", "time"]),
)
def test_a_fetch_of_many_partitions_ends_when_one_that_looks_at_all_does(
    make_broker: Callable[..., InMemoryBroker],
    batches: list[tuple[int, int]],
    waits_at: int,
    min_bytes: int,
    offset: int,
    end: str,
) -> None:
    lab = make_broker()
    topic_id = lab.add_topic("t", partitions=3)
    for partition in range(3):
        append_bytes(lab, 100, partition)
    for partition, size in batches[:waits_at]:
        append_bytes(lab, size, partition)
    looks_at_all, looks_at_one = Client(), Client()
    answers = []
    for client, few in ((looks_at_all, 32), (looks_at_one, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch, "FEW_PARTITIONS", few)
            wanted = {("t", partition): offset for partition in range(3)}
            answers.append(ask(lab, client, wanted, min_bytes=min_bytes))
    assert (answers[0] is None) == (answers[1] is None)
    for partition, size in batches[waits_at:]:
        append_bytes(lab, size, partition)
        assert len(looks_at_one.answers) == len(looks_at_all.answers)
    if end == "move":
        moved = PartitionState("t", topic_id, 1, 2, 4, (2,), (1, 2), 7, partition_epoch=2)
        lab.runner.run(lab.commands.leader_and_isr(LeaderAndIsr(1, 7, (moved,))))
    else:
        lab.broker.timer.advance(500)
    assert len(looks_at_one.answers) == len(looks_at_all.answers) == (answers[0] is None)
    for first, second in zip(looks_at_all.answers, looks_at_one.answers, strict=True):
        assert sizes(first) == sizes(second)


# -- sessions


def test_a_partition_forgotten_while_its_fetch_waits(lab: InMemoryBroker, client: Client) -> None:
    """A client may pipeline requests. The first response must still be sent."""
    lab.add_topic("t", partitions=2)
    first = ask(lab, client, {("t", 0): 0, ("t", 1): 0}, session_epoch=0, max_wait_ms=0)
    assert first is not None
    name = first.session_id
    assert ask(lab, client, {}, session_id=name, session_epoch=1) is None
    forgotten = [ForgottenTopic(topic="t", partitions=[0])]
    assert ask(lab, client, {}, session_id=name, session_epoch=2, forgotten_topics_data=forgotten) is None
    size = append_bytes(lab, 1000, partition=0)
    assert [sizes(answer) for answer in client.answers] == [{("t", 0): size}]


def test_an_incremental_response_contains_only_news_and_starves_no_partition(
    lab: InMemoryBroker, client: Client
) -> None:
    lab.add_topic("t", partitions=3)
    for partition in range(3):
        append_bytes(lab, 1000, partition)
    wanted = {("t", partition): 0 for partition in range(3)}
    answer = ask(lab, client, wanted, session_epoch=0, max_bytes=1)
    assert answer is not None
    served = [max(sizes(answer), key=lambda key: sizes(answer)[key])]
    for epoch in (1, 2):
        more = ask(lab, client, {}, session_id=answer.session_id, session_epoch=epoch, max_bytes=1)
        assert more is not None
        (named,) = sizes(more)
        served.append(named)
    assert sorted(served) == [("t", 0), ("t", 1), ("t", 2)]


def test_no_session_for_an_unknown_id(lab: InMemoryBroker, client: Client) -> None:
    answer = ask(lab, client, {}, session_id=4711, session_epoch=3)
    assert answer is not None
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_unknown_topic_id(lab: InMemoryBroker, client: Client) -> None:
    topics = [FetchTopic(topic_id=uuid.UUID(int=5), partitions=[FetchPartition()])]
    context = client.context()
    context.api_version = 17
    answer = lab.handle(ApiKey.FETCH, FetchRequest(topics=topics, max_wait_ms=500, min_bytes=1), context)
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("version", "leader"), [(15, None), (16, 2)])
def test_the_leader_is_named_since_version_16(
    lab: InMemoryBroker, client: Client, version: int, leader: int | None
) -> None:
    topic_id = lab.add_topic("elsewhere", leader=2)
    client.version = version
    wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0)])
    answer = ask(lab, client, {}, topics=[wanted])
    assert answer is not None
    (part,) = answer.responses[0].partitions
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.current_leader and part.current_leader.leader_id) == leader


def test_a_fetch_that_waits_does_not_keep_what_it_asked_for(lab: InMemoryBroker, client: Client) -> None:
    """A partition that a request names 10,000 times is watched once, but took 1.3 MB while a fetch waited."""
    lab.add_topic("t")
    gc.collect()
    before = len(gc.get_objects())
    partitions = [FetchPartition(0, partition_max_bytes=1) for _ in range(5_000)]
    topics = [FetchTopic(topic="t", partitions=partitions)]
    del partitions
    assert ask(lab, client, {}, topics=topics) is None
    del topics
    gc.collect()
    assert len(gc.get_objects()) - before < 2_000
