"""Single decisions of a producer's core. Each test is a fault that a review found."""

from __future__ import annotations

import uuid

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producer import ProducerCore, ProducerIdReceived, RequestMetadata
from tidelog.client.core.producer_settings import ProducerSettings
from tidelog.model.errors import ErrorCode

NODES = (Node(1, "h", 1),)
METADATA = MetadataReceived(NODES, (TopicView("t", uuid.UUID(int=1), (PartitionLeader(1, 0),)),))


def producer() -> ProducerCore:
    return ProducerCore(ProducerSettings(), choose=lambda count: 0, jitter=lambda: 0.5)


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
