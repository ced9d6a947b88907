"""Single decisions of a producer's core. Each test is a fault that a review found."""

from __future__ import annotations

import uuid

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.producer import ProducerCore
from tidelog.client.core.producer_settings import ProducerSettings

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
