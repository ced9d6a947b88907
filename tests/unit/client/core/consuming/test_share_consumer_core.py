"""Single decisions of a share consumer's core."""

from __future__ import annotations

import uuid

import pytest

from brokerlab.batches import build_batch
from tidelog.client.core.cluster_view import MetadataReceived, Node, PartitionLeader, TopicView
from tidelog.client.core.consuming.consumer_events import AcknowledgeType, SendGroupRequest, TopicsMissing
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.consuming.share_consumer import (
    AcknowledgementDone,
    SendAcknowledgements,
    SendShareFetch,
    ShareAnswered,
    ShareConsumerCore,
    SharedPartition,
)
from tidelog.client.core.settings import ShareConsumerSettings
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


@pytest.mark.parametrize("decides_late", [False, True], ids=["before it comes again", "after it came again"])
def test_a_record_that_came_again_is_acknowledged_only_to_the_broker_that_gave_it_last(
    decides_late: bool,
) -> None:
    """Otherwise a broker that gave the record before learns a decision that the application has replaced."""
    places = TopicPartition("t", 0), TopicPartition("t", 1)
    nodes = (Node(1, "h", 1), Node(2, "h", 1))
    topic_id = uuid.UUID(int=1)
    before, after = (TopicView("t", topic_id, (PartitionLeader(each, each),) * 2) for each in (1, 2))
    settings = ShareConsumerSettings(group_id="g", share_acknowledgement_mode="explicit")
    core = ShareConsumerCore(settings, jitter=lambda: 0.5)
    core.subscribe(("t",), 0)
    core.begin_poll(0)
    core.step(MetadataReceived(nodes, (before,)), 0)
    assigned = frozenset({(topic_id, 0), (topic_id, 1)})
    effects = core.step(
        HeartbeatAnswered(Heartbeat(0, 0, ("t",), None, frozenset()), 0, None, 1, 5_000, assigned), 1
    )

    def answer(to: SendShareFetch, delivery_count: int, error_code: ErrorCode) -> ShareAnswered:
        records = memoryview(build_batch([b"a"]))
        given = SharedPartition(0, None, 0, None, records, ((0, 0, delivery_count),), None)
        refused = SharedPartition(error_code, None, 0, None, memoryview(b""), (), None)
        return ShareAnswered(to.request_id, 0, None, 30_000, dict(zip(places, (given, refused), strict=True)))

    (fetch,) = [effect for effect in effects if isinstance(effect, SendShareFetch)]
    core.step(answer(fetch, 1, ErrorCode.LEADER_NOT_AVAILABLE), 2)  # the next request to broker 1 waits
    assert [each.delivery_count for each in core.take(10, 2)] == [1]
    if not decides_late:
        core.acknowledge(places[0], 0, AcknowledgeType.ACCEPT)
        core.begin_poll(3)
    effects = core.step(MetadataReceived(nodes, (after,)), 3)
    (fetch,) = [effect for effect in effects if isinstance(effect, SendShareFetch)]
    assert fetch.node_id == 2
    effects = core.step(answer(fetch, 2, ErrorCode.NONE), 4)
    if decides_late:
        core.acknowledge(places[0], 0, AcknowledgeType.ACCEPT)
        effects += core.commit(4)
    (done,) = [effect for effect in effects if isinstance(effect, AcknowledgementDone)]
    assert (done.place, done.offsets) == (places[0], (0,))
    assert done.error is not None
    assert done.error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.SHARE_SESSION_NOT_FOUND)
    assert [each.delivery_count for each in core.take(10, 4)] == [2]
    core.acknowledge(places[0], 0, AcknowledgeType.REJECT)
    effects = core.commit(10_000)
    sent = [effect for effect in effects if isinstance(effect, SendShareFetch | SendAcknowledgements)]
    told = [(effect.node_id, effect.acknowledgements.get(places[0], ())) for effect in sent]
    assert [(node_id, batch.types) for node_id, found in told for batch in found] == [
        (2, (AcknowledgeType.REJECT,))
    ]
