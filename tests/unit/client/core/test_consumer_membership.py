"""The core of a membership of KIP-848: how a member leaves."""

from __future__ import annotations

import uuid

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consumer import AssignmentDone, ConsumerCore, LeaveGroup
from tidelog.client.core.consumer_settings import ConsumerSettings
from tidelog.client.core.membership import HeartbeatAnswered, LeaveHeartbeat
from tidelog.model.topics import TopicPartition

TOPIC_ID = uuid.UUID(int=1)
PLACE = TopicPartition("t", 0)
METADATA = MetadataReceived((Node(1, "h", 1),), (TopicView("t", TOPIC_ID, (PartitionLeader(1, 0),)),))


def member(instance_id: str | None = None) -> ConsumerCore:
    """Returns a member in epoch 1 that has PLACE, while the application polls."""
    core = ConsumerCore(ConsumerSettings(group_id="g", group_instance_id=instance_id), jitter=lambda: 0.5)
    core.subscribe(("t",), None, 0)
    core.begin_poll(0)
    core.step(METADATA, 0)
    core.step(HeartbeatAnswered(0, None, 1, 5_000, frozenset({(TOPIC_ID, 0)})), 1)
    core.step(AssignmentDone((PLACE,)), 2)
    assert PLACE in core.partitions
    return core


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_static_member_keeps_its_partitions_when_it_leaves(instance_id: str | None, epoch: int) -> None:
    """Kafka's consumer does so, too: -1 would remove a static member for good (KIP-848)."""
    core = member(instance_id)
    assert core.membership is not None
    assert core.membership.goodbye() == LeaveHeartbeat(epoch)
    core.end_poll(10)
    left = [effect for effect in core.poll(400_000) if isinstance(effect, LeaveGroup)]
    assert left == [LeaveGroup(LeaveHeartbeat(epoch))], "an application that polls too rarely"
