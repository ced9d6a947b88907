"""Single decisions of a producer's core. Each test is a fault that a review found."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producer import ProducerCore, ProducerIdReceived, RequestMetadata
from tidelog.client.core.producer_batch import BatchState
from tidelog.client.core.producer_settings import ProducerSettings
from tidelog.model.errors import ErrorCode
from tidelog.records.record import Record, iterate_records

NODES = (Node(1, "h", 1),)
METADATA = MetadataReceived(NODES, (TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),)),))


def producer(**settings: int) -> ProducerCore:
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
