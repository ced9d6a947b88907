"""Single decisions of a producer's core. Each test is a fault that a review found."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import (
    BatchState,
    Effect,
    Event,
    PartitionAnswer,
    ProduceAnswered,
    ProduceFailed,
    ProducerIdReceived,
    RequestMetadata,
    SendProduce,
)
from tidelog.client.core.settings import ProducerSettings
from tidelog.model.errors import ErrorCode
from tidelog.records.record import Record, iterate_records

NODES = (Node(1, "h", 1),)
METADATA = MetadataReceived(NODES, (TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),)),))


def producer(**settings: Any) -> ProducerCore:
    return ProducerCore(ProducerSettings(**settings), choose=lambda count: 0, jitter=lambda: 0.5)


def test_a_record_that_cannot_be_encoded_uses_no_memory() -> None:
    core = producer()
    core.partition_count("t")
    core.step(METADATA, 0)
    free_bytes = core.free_bytes
    with pytest.raises(TypeError):
        core.append("t", 0, 0, None, "text", (), 0)  # type: ignore[arg-type]
    assert core.free_bytes == free_bytes


def test_a_refused_topic_is_requested_only_while_a_send_waits() -> None:
    core = producer()
    refusal = MetadataReceived(
        NODES, (TopicView("t", uuid.UUID(int=0), (), ErrorCode.INVALID_TOPIC_EXCEPTION),)
    )
    core.append("t", None, 0, None, b"v", (), 0)
    assert core.poll(0) == [RequestMetadata((), ("t",))]
    core.step(refusal, 1)
    assert core.topic_error("t") is not None
    for now_ms in range(2, 600_000, 100):
        assert core.poll(now_ms) == []
    core.append("t", None, 0, None, b"v", (), 600_000)
    assert core.poll(600_000) == [RequestMetadata((), ("t",))]


def test_a_refresh_does_not_create_the_topics_that_no_record_waits_for() -> None:
    core = producer()
    core.append("t", None, 0, None, b"v", (), 0)
    core.poll(0)
    core.step(METADATA, 1)
    core.step(ProducerIdReceived(1, 0), 2)
    assert core.poll(400_000) == [RequestMetadata(("t",), ())]
    deleted = TopicView("t", uuid.UUID(int=1), (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    core.step(MetadataReceived(NODES, (deleted,)), 400_001)
    core.append("t", None, 0, None, b"v", (), 400_100)
    asked = [effect for effect in core.poll(402_000) if isinstance(effect, RequestMetadata)]
    assert asked == [RequestMetadata((), ("t",))]


VALUES = st.lists(st.none() | st.binary(max_size=70) | st.just(b"x" * 300), min_size=1, max_size=40)


def queued(core: ProducerCore) -> list[list[Record]]:
    batches = core.pending_batches()
    for batch in batches:
        if batch.state is BatchState.OPEN:
            batch.close()
    return [list(iterate_records(batch.encode(is_transactional=False))) for batch in batches]


@given(VALUES, st.integers(900, 1_100))
def test_values_added_together_form_the_batches_of_values_added_one_by_one(
    values: list[bytes | None], later_ms: int
) -> None:
    together, one_by_one = producer(batch_size=500), producer(batch_size=500)
    for core in (together, one_by_one):
        core.step(METADATA, 0)
        core.append("t", 0, 1_000, b"key", b"first", (), 0)
    start = 0
    while start < len(values):
        found = together.append_values("t", 0, later_ms, values, start, 0)
        assert found is not None and found[1] <= found[0].count
        start += found[1]
    for value in values:
        one_by_one.append("t", 0, later_ms, None, value, (), 0)
    assert queued(together) == queued(one_by_one)


def test_a_value_that_is_not_bytes_ends_what_is_added_together() -> None:
    core = producer()
    core.step(METADATA, 0)
    values: list[Any] = [b"a", b"b", "c"]
    found = core.append_values("t", 0, 1_000, values, 0, 0)
    assert found is not None and found[1] == 2
    with pytest.raises(TypeError):
        core.append_values("t", 0, 1_000, values, 2, 0)
    assert [[record.value for record in batch] for batch in queued(core)] == [[b"a", b"b"]]


def test_new_records_of_a_topic_created_again_go_to_partitions_that_exist() -> None:
    core = ProducerCore(ProducerSettings(), choose=lambda count: count - 1, jitter=lambda: 0.5)
    five = TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),) * 5)
    core.step(MetadataReceived(NODES, (five,)), 0)
    assert core.partition_count("t") == 5
    one = five._replace(topic_id=uuid.UUID(int=2), partitions=five.partitions[:1])
    core.step(MetadataReceived(NODES, (one,)), 1)
    assert core.partition_count("t") == 1
    batch = core.append("t", None, 0, None, b"v", (), 2)
    assert batch is not None and batch.place.partition == 0
    assert core.append("t", 4, 0, None, b"v", (), 2) is None, "such a partition may come later"
    core.step(MetadataReceived(NODES, (five._replace(topic_id=uuid.UUID(int=3)),)), 3)
    assert core.append("t", 4, 0, None, b"v", (), 4) is not None


def sent(effects: list[Effect]) -> list[SendProduce]:
    return [effect for effect in effects if isinstance(effect, SendProduce)]


def answered(request: SendProduce, code: ErrorCode) -> ProduceAnswered:
    answer = PartitionAnswer(code, -1, -1, None, None)
    return ProduceAnswered(request.request_id, {batch.place: answer for batch in request.batches})


def test_a_batch_whose_leader_has_lost_its_disk_keeps_its_numbers() -> None:
    """A leader may append a batch, which a follower fetches, before its disk fails in a flush."""
    core = producer(linger_ms=0, retry_backoff_ms=0)
    core.step(METADATA, 0)
    core.step(ProducerIdReceived(7, 0), 0)
    core.append("t", 0, 0, None, b"known", (), 0)
    (known,) = sent(core.poll(0))
    core.step(answered(known, ErrorCode.NONE), 1)
    core.append("t", 0, 0, None, b"late", (), 2)
    (late,) = sent(core.poll(2))
    core.append("t", 0, 0, None, b"stored", (), 60_000)
    (stored,) = sent(core.poll(60_000))
    core.step(answered(stored, ErrorCode.KAFKA_STORAGE_ERROR), 60_001)
    (again,) = sent(core.step(ProduceFailed(late.request_id, True, "lost"), 120_002))
    assert again.batches == stored.batches
    assert (again.batches[0].producer_epoch, again.batches[0].base_sequence) == (0, 2)


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_busy_partitions_do_not_keep_the_others_from_the_requests(is_idempotent: bool) -> None:
    """Two of three batches fill a request. Kafka's producer also begins each request where the last ended."""
    core = producer(
        linger_ms=0,
        batch_size=3_000,
        max_request_size=8_000,
        enable_idempotence=is_idempotent,
        max_in_flight_requests_per_connection=1,
    )
    topic = TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),) * 3)
    core.step(MetadataReceived(NODES, (topic,)), 0)
    core.step(ProducerIdReceived(7, 0), 0)
    counts: Counter[int] = Counter()
    in_flight: SendProduce | None = None
    for now_ms in range(30):
        for partition in range(3):
            core.append("t", partition, 0, None, b"x" * 2_900, (), now_ms)
        effects = (
            core.poll(now_ms) if in_flight is None else core.step(answered(in_flight, ErrorCode.NONE), now_ms)
        )
        (in_flight,) = sent(effects)
        counts.update(batch.place.partition for batch in in_flight.batches)
    assert set(counts.values()) == {20}


def leaders_of(topic_number: int, *leaders: PartitionLeader) -> MetadataReceived:
    """Returns metadata of a cluster of three brokers, in which `t` is the topic with this id."""
    nodes = tuple(Node(node_id, "h", 1) for node_id in (1, 2, 3))
    return MetadataReceived(nodes, (TopicView("t", uuid.UUID(int=topic_number), leaders),))


def test_a_late_answer_about_a_deleted_topic_names_no_leader_of_its_successor() -> None:
    """The epochs of the next topic begin at 0, so metadata would never replace a leader of epoch 9."""
    core = producer(linger_ms=0, retry_backoff_ms=0)
    core.step(leaders_of(1, PartitionLeader(1, 8)), 0)
    core.step(ProducerIdReceived(7, 0), 0)
    core.append("t", 0, 0, None, b"v", (), 0)
    (request,) = sent(core.poll(0))
    core.step(leaders_of(2, PartitionLeader(2, 0)), 1)
    moved = PartitionAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, None, PartitionLeader(3, 9))
    effects = core.step(ProduceAnswered(request.request_id, {request.batches[0].place: moved}), 2)
    (again,) = sent(effects)
    assert again.node_id == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_the_first_batch_to_a_topic_created_again_goes_alone(is_late: bool) -> None:
    """Its leader knows no numbers of the producer and takes the second batch although it refused the first.
    The first would then be stored after the second. A late answer about the former topic changes nothing.
    """
    core = producer(linger_ms=0, batch_size=1, retry_backoff_ms=0)
    core.step(leaders_of(1, PartitionLeader(1, 0)), 0)
    core.step(ProducerIdReceived(7, 0), 0)
    core.append("t", 0, 0, None, b"known", (), 0)
    (known,) = sent(core.poll(0))
    events: list[Event] = [answered(known, ErrorCode.NONE), leaders_of(2, PartitionLeader(2, 0))]
    for event in reversed(events) if is_late else events:
        core.step(event, 1)
    core.append("t", 0, 0, None, b"first", (), 3)
    core.append("t", 0, 0, None, b"second", (), 3)
    (first,) = sent(core.poll(3))
    assert [batch.base_sequence for batch in first.batches] == [1]
    (second,) = sent(core.step(answered(first, ErrorCode.NONE), 4))
    assert [batch.base_sequence for batch in second.batches] == [2]


def test_a_request_that_was_never_written_uses_up_no_retry() -> None:
    """Kafka's producer does not send to a broker without a connection, so `retries` outlasts its restart."""
    core = producer(linger_ms=0, retries=1, retry_backoff_ms=0)
    core.step(METADATA, 0)
    core.step(ProducerIdReceived(7, 0), 0)
    batch = core.append("t", 0, 0, None, b"v", (), 0)
    assert batch is not None
    (request,) = sent(core.poll(0))
    for now_ms in range(1, 10):
        (request,) = sent(core.step(ProduceFailed(request.request_id, False, "refused"), now_ms))
    (request,) = sent(core.step(ProduceFailed(request.request_id, True, "lost"), 10))
    assert not batch.is_done
    core.step(ProduceFailed(request.request_id, True, "lost"), 11)
    assert batch.is_done and batch.error is not None


def test_a_batch_without_its_records_is_never_encoded() -> None:
    core = producer(linger_ms=0)
    core.step(METADATA, 0)
    core.step(ProducerIdReceived(7, 0), 0)
    batch = core.append("t", 0, 0, None, b"v", (), 0)
    assert batch is not None
    (request,) = sent(core.poll(0))
    assert request.unfinished == (batch,)
    core.poll(200_000)
    assert batch.is_done and not request.unfinished
    with pytest.raises(AssertionError, match="has no records"):
        batch.encode(is_transactional=False)


def test_an_answer_about_other_topics_leaves_a_refused_topic_wanted() -> None:
    core = producer()
    refused = TopicView("u", uuid.UUID(int=0), (), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    core.append("u", None, 0, None, b"v", (), 0)
    core.poll(0)
    core.step(METADATA._replace(topics=(*METADATA.topics, refused)), 1)
    assert core.answer_count("u") == 1
    core.append("u", None, 0, None, b"v", (), 1_000)
    core.step(METADATA, 1_001)
    assert core.answer_count("u") == 1 and core.answer_count("t") == 2
    assert core.poll(3_000) == [RequestMetadata(("t",), ("u",))]
