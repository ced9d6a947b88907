"""Single decisions of a share consumer's core."""

from __future__ import annotations

import uuid

import pytest

from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consumer_events import SendGroupRequest, TopicsMissing
from tidelog.client.core.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.settings import ShareConsumerSettings
from tidelog.client.core.share_consumer import (
    SendShareFetch,
    ShareAnswered,
    ShareConsumerCore,
    SharedPartition,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition


def refused() -> ShareConsumerCore:
    """Returns a member that the coordinator refuses for ever."""
    core = ShareConsumerCore(ShareConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), 0)
    (request,) = [effect.request for effect in core.begin_poll(0) if isinstance(effect, SendGroupRequest)]
    assert isinstance(request, Heartbeat)
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    core.step(HeartbeatAnswered(request, code, None, 0, 0, None), 1)
    return core


def test_each_poll_of_a_refused_member_fails() -> None:
    """An application that catches the first error would wait for records that never come."""
    core = refused()
    for now_ms in (2, 3):
        core.begin_poll(now_ms)
        with pytest.raises(KafkaError, match="group 'g'"):
            core.take(10, now_ms)
        assert not core.is_polling


def test_an_error_of_an_earlier_subscription_is_not_raised() -> None:
    core = refused()
    core.error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-0")
    core.unsubscribe()
    core.subscribe(("u",), 2)
    core.begin_poll(2)
    assert core.take(10, 2) == []


def test_a_late_answer_about_a_deleted_topic_names_no_leader_of_its_successor() -> None:
    """The epochs of the next topic begin at 0, so metadata would never replace a leader of epoch 9."""
    place = TopicPartition("t", 0)
    nodes = (Node(1, "h", 1), Node(2, "h", 1), Node(3, "h", 1))
    former, successor = (
        TopicView("t", uuid.UUID(int=number), (PartitionLeader(number, 0),)) for number in (1, 2)
    )
    core = ShareConsumerCore(ShareConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), 0)
    core.begin_poll(0)
    core.step(MetadataReceived(nodes, (former,)), 0)
    beat = Heartbeat(0, 0, ("t",), None, frozenset())
    effects = core.step(HeartbeatAnswered(beat, 0, None, 1, 5_000, frozenset({(former.topic_id, 0)})), 1)
    (fetch,) = [effect for effect in effects if isinstance(effect, SendShareFetch)]
    core.step(MetadataReceived(nodes, (successor,)), 2)
    moved = SharedPartition(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, None, 0, None, memoryview(b""), (), PartitionLeader(3, 9)
    )
    core.step(ShareAnswered(fetch.request_id, 0, None, 30_000, {place: moved}), 3)
    assert core.view.leader(place) == PartitionLeader(2, 0)


def test_a_missing_topic_is_named() -> None:
    core = ShareConsumerCore(ShareConsumerSettings(group_id="g"), jitter=lambda: 0.5)
    core.subscribe(("t",), 0)
    missing = TopicView("t", uuid.UUID(int=0), (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    received = MetadataReceived((Node(1, "h", 1),), (missing,))
    reasons = {"topic 't'": "the topic or partition does not exist"}
    assert TopicsMissing(reasons) not in core.step(received, 0)
    assert TopicsMissing(reasons) in core.step(received, 10_000)
