"""Single decisions of a member of a classic group."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.client.core.cluster_view import (
    ClusterView,
    MetadataReceived,
    Node,
    PartitionLeader,
    TopicView,
)
from tidelog.client.core.connection_settings import SettingsError
from tidelog.client.core.consuming.assignors import decode_assignment, encode_subscription
from tidelog.client.core.consuming.classic_membership import (
    ClassicMembership,
    GroupHeartbeat,
    GroupHeartbeatAnswered,
    GroupMember,
    JoinAnswered,
    JoinGroup,
    LeaveGroupRequest,
    SyncAnswered,
    SyncGroup,
)
from tidelog.client.core.consuming.membership import MemberState
from tidelog.client.core.settings import ConsumerSettings, parse_consumer_settings
from tidelog.kernel.instants import Backoff
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)


def view_of(**counts: int) -> ClusterView:
    view = ClusterView()
    topics = [
        TopicView(name, UUID(int=at + 1), (PartitionLeader(1, 0),) * count)
        for at, (name, count) in enumerate(counts.items())
    ]
    view.update(MetadataReceived((), tuple(topics)))
    return view


def joining(**settings: str) -> tuple[ClassicMembership, JoinGroup]:
    """Returns a member and the JoinGroup that it sends."""
    chosen = ConsumerSettings(group_id="g", group_protocol="classic", **settings)  # type: ignore[arg-type]
    membership = ClassicMembership(chosen, Backoff(100, 1_000, jitter=lambda: 0.5))
    membership.subscribe(("t",), None, 0)
    request = membership.request(0)
    assert isinstance(request, JoinGroup)
    return membership, request


def leading(view: ClusterView, *topics: str) -> tuple[ClassicMembership, JoinGroup]:
    """Returns the leader of two members. The other one subscribes to these topics."""
    membership, request = joining()
    other = encode_subscription("range", topics, frozenset(), frozenset(), -1, None)
    members = (GroupMember("a", None, dict(request.protocols)["range"]), GroupMember("b", None, other))
    membership.answered(JoinAnswered(request, 0, "a", 1, "range", "a", members), 1)
    membership.assign_if_known(view, 1)
    return membership, request


def stable(view: ClusterView) -> ClassicMembership:
    membership, _ = leading(view, "t")
    sync = membership.request(1)
    assert isinstance(sync, SyncGroup)
    membership.answered(SyncAnswered(sync, 0, dict(sync.assignments)["a"]), 2)
    membership.take(frozenset(decode_assignment(dict(sync.assignments)["a"])), 2)
    assert membership.state is MemberState.STABLE
    return membership


def test_a_leader_waits_for_metadata_of_the_topics_of_others() -> None:
    membership, _ = leading(view_of(t=2), "u")
    assert membership.group_topics == ("t", "u")
    assert membership.request(1) is None
    assert not membership.took_metadata(view_of(t=2, u=1), 2)
    sync = membership.request(2)
    assert isinstance(sync, SyncGroup)
    given = {member: decode_assignment(data) for member, data in sync.assignments}
    assert given == {"a": {PLACE, TopicPartition("t", 1)}, "b": {TopicPartition("u", 0)}}


def test_a_leader_assigns_by_racks_and_joins_again_when_replicas_move_but_not_when_a_broker_stops() -> None:
    nodes = tuple(Node(node_id, "h", 1, rack) for node_id, rack in ((1, "x"), (2, "y")))
    view = ClusterView()

    def update(brokers: tuple[Node, ...], *replicas: tuple[int, ...]) -> None:
        topic = TopicView("t", UUID(int=1), (PartitionLeader(1, 0),) * 2, replicas=replicas)
        view.update(MetadataReceived(brokers, (topic,)))

    update(nodes, (2,), (1,))
    membership, request = joining(client_rack="x")
    other = encode_subscription("range", ("t",), frozenset(), frozenset(), -1, "y")
    members = (GroupMember("a", None, dict(request.protocols)["range"]), GroupMember("b", None, other))
    membership.answered(JoinAnswered(request, 0, "a", 1, "range", "a", members), 1)
    membership.assign_if_known(view, 1)
    sync = membership.request(1)
    assert isinstance(sync, SyncGroup)
    given = {member: decode_assignment(data) for member, data in sync.assignments}
    assert given == {"a": {TopicPartition("t", 1)}, "b": {PLACE}}
    membership.answered(SyncAnswered(sync, 0, dict(sync.assignments)["a"]), 2)
    membership.take(frozenset(given["a"]), 2)
    update(nodes[:1], (2,), (1,))
    membership.took_metadata(view, 3)
    membership.prepare(3)
    assert membership.state is MemberState.STABLE
    update(nodes, (1,), (2,))
    membership.took_metadata(view, 4)
    membership.prepare(4)
    assert membership.state is not MemberState.STABLE


def test_a_leader_does_not_wait_for_ever_for_a_topic_that_does_not_exist() -> None:
    view = view_of(t=2)
    membership, _ = leading(view, "u")
    assert [membership.took_metadata(view, now_ms) for now_ms in (2, 3, 4)] == [True, True, False]
    assert isinstance(membership.request(4), SyncGroup)


def test_new_partitions_make_the_leader_join_again() -> None:
    membership = stable(view_of(t=2))
    membership.took_metadata(view_of(t=2), 3)
    membership.prepare(3)
    assert membership.state is MemberState.STABLE
    membership.took_metadata(view_of(t=3), 4)
    membership.prepare(4)
    assert membership.partitions_to_revoke() == {PLACE}


def test_heartbeats_go_on_until_the_application_polls() -> None:
    membership = stable(view_of(t=2))
    beat = membership.request(4_000)
    assert isinstance(beat, GroupHeartbeat)
    membership.answered(GroupHeartbeatAnswered(beat, ErrorCode.REBALANCE_IN_PROGRESS), 4_001)
    assert isinstance(membership.request(8_000), GroupHeartbeat)
    assert membership.state is MemberState.STABLE


def test_an_answer_to_an_earlier_membership_is_ignored() -> None:
    membership, request = joining()
    membership.leave()
    membership.subscribe(("t",), None, 5)
    again = membership.request(5)
    membership.answered(JoinAnswered(request, 0, "old", 7, "range", "old", ()), 6)
    assert membership.member_id == "" and membership.state is MemberState.JOINING
    assert isinstance(again, JoinGroup) and membership.request(7) is None, "the new request is in flight"


def test_a_loss_of_an_earlier_membership_does_not_end_this_one() -> None:
    membership = stable(view_of(t=2))
    owned, departures = membership.owned, membership.departures
    membership.lost(3)
    assert owned and (membership.owned, membership.departures) == (owned, departures)
    assert membership.state is MemberState.STABLE


def test_only_a_dynamic_member_says_goodbye() -> None:
    for settings, goodbye in (({}, LeaveGroupRequest("a")), ({"group_instance_id": "i"}, None)):
        membership, request = joining(**settings)
        membership.answered(JoinAnswered(request, 0, "a", 1, "range", "b", ()), 1)
        assert membership.goodbye() == goodbye


def test_a_fenced_static_member_fails() -> None:
    membership, request = joining(group_instance_id="i")
    membership.answered(JoinAnswered(request, ErrorCode.FENCED_INSTANCE_ID, "", -1, "", "", ()), 1)
    assert membership.state is MemberState.FAILED
    assert membership.error is not None and membership.error.code is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"session.timeout.ms": 10_000}, r"session\.timeout\.ms needs group\.protocol=classic"),
        ({"group.protocol": "classic", "group.remote.assignor": "uniform"}, r"group\.remote\.assignor needs"),
        ({"group.protocol": "classic", "session.timeout.ms": 3_000}, r"must be less than"),
        ({"group.protocol": "classic", "partition.assignment.strategy": "mine"}, r"must be one of"),
    ],
)
def test_settings_of_another_protocol_are_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse_consumer_settings({"group.id": "g", **given})


def test_assignors_have_the_names_of_kafkas_classes_too() -> None:
    names = "org.apache.kafka.clients.consumer.RangeAssignor,range,cooperative-sticky"
    settings = parse_consumer_settings(
        {"group.protocol": "classic", "partition.assignment.strategy": names, "group.id": "g"}
    )
    assert settings.assignors == ("range", "cooperative-sticky")
