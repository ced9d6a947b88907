"""Reassignments: refused requests, intermediate states and completion."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Core
from tidelog.controller.core.commands import commands_for
from tidelog.controller.core.reassignments import (
    advance_reassignments,
    alter_partition_reassignments,
    list_partition_reassignments,
)
from tidelog.controller.core.state import ChangeSet
from tidelog.controller.core.topics import create_topics
from tidelog.kernel.steps import all_at_once
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

MakeCore = type[Core]


def _make(cluster: Core, name: str, *replicas: list[int]) -> None:
    assignments = [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(replicas)]
    request = CreateTopicsRequest([CreatableTopic(name, -1, -1, assignments)])
    assert cluster.request(create_topics, request).topics[0].error_code == 0


def _alter(
    cluster: Core, replicas: list[int] | None, partition: int = 0, *, factor_change: bool = True
) -> int:
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=factor_change,
        topics=[ReassignableTopic("t", [ReassignablePartition(partition, replicas)])],
    )
    (topic,) = cluster.request(alter_partition_reassignments, request).responses
    cluster.write(advance_reassignments(cluster.state, cluster.context()))
    return int(topic.partitions[0].error_code)


def _joins(cluster: Core, *brokers: int) -> None:
    """Lets the leader add the new replicas to the ISR."""
    state: PartitionStateEntry = cluster.partition("t")
    cluster.revision += 1
    entry = state._replace(isr=(*state.isr, *brokers), elr=())
    cluster.state.apply(entry, cluster.revision, cluster.revision, cluster.changes)
    cluster.write(advance_reassignments(cluster.state, cluster.context()))


def _ongoing(cluster: Core) -> list[tuple[list[int], list[int], list[int]]]:
    reply = cluster.request(list_partition_reassignments, ListPartitionReassignmentsRequest())
    return [
        (p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in reply.topics
        for p in topic.partitions
    ]


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1, 2], 0),
        ([2, 1], 0),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_reassignment_without_new_replicas_is_refused_or_completed_at_once(
    core: MakeCore, replicas: list[int] | None, code: int
) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2])
    epoch = cluster.partition("t").leader_epoch
    assert _alter(cluster, replicas) == code
    assert _alter(cluster, [1], 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _ongoing(cluster) == []
    assert cluster.partition("t").leader_epoch == epoch
    assert cluster.state.topics["t"].assignments[0] == tuple(replicas if replicas and not code else [1, 2])


def test_a_reassignment_from_request_to_completion(core: MakeCore) -> None:
    cluster = core([1, 2, 3, 4])
    _make(cluster, "t", [1, 2])
    cluster.changes = ChangeSet()
    assert _alter(cluster, [3, 4]) == 0
    assert _ongoing(cluster) == [([3, 4, 1, 2], [3, 4], [1, 2])]
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 1)
    commands = all_at_once(commands_for(cluster.state, cluster.changes, 1, 5))
    assert set(commands) == {1, 2, 3, 4}
    for lead, update in commands.values():
        assert isinstance(lead, LeaderAndIsr)
        assert isinstance(update, UpdateMetadata)
        assert lead.partitions[0].adding_replicas == (3, 4)
    _joins(cluster, 3)
    assert cluster.partition("t").leader == 1
    cluster.changes = ChangeSet()
    _joins(cluster, 4)
    state = cluster.partition("t")
    assert (state.leader, set(state.isr), state.leader_epoch) == (3, {3, 4}, 2)
    assert cluster.state.topics["t"].assignments[0] == (3, 4)
    assert _ongoing(cluster) == []
    commands = all_at_once(commands_for(cluster.state, cluster.changes, 1, 5))
    for broker_id in (1, 2):
        stop, update = commands[broker_id]
        assert isinstance(stop, StopReplica)
        assert stop.delete
        assert stop.partitions == (TopicPartition("t", 0),)
        assert isinstance(update, UpdateMetadata)
    assert isinstance(commands[3][0], LeaderAndIsr)


def test_a_leader_in_the_target_keeps_leading(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2])
    assert _alter(cluster, [3, 1]) == 0
    _joins(cluster, 3)
    state = cluster.partition("t")
    assert (state.leader, set(state.isr)) == (1, {1, 3})
    assert cluster.state.topics["t"].assignments[0] == (3, 1)


def test_the_replication_factor_changes_only_if_the_request_allows_it(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2])
    assert _alter(cluster, [1, 2, 3], factor_change=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert _alter(cluster, [3, 2], factor_change=False) == 0
    assert _alter(cluster, [1, 2, 3]) == 0
    _joins(cluster, 3)
    assert cluster.state.topics["t"].assignments[0] == (1, 2, 3)
    assert _alter(cluster, [2]) == 0
    state = cluster.partition("t")
    assert (state.leader, state.isr) == (2, (2,))
    assert cluster.state.topics["t"].assignments[0] == (2,)


def test_a_running_reassignment_is_changed_and_cancelled(core: MakeCore) -> None:
    cluster = core([1, 2, 3, 4])
    _make(cluster, "t", [1, 2])
    assert _alter(cluster, [3, 4]) == 0
    _joins(cluster, 3)
    assert _alter(cluster, [4, 1]) == 0
    assert _ongoing(cluster) == [([4, 1, 2], [4], [2])]
    assert set(cluster.partition("t").isr) == {1, 2}, "broker 3 is no longer a replica"
    assert _alter(cluster, None) == 0
    assert _ongoing(cluster) == []
    assert cluster.state.topics["t"].assignments[0] == (1, 2)
    assert _alter(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancellation_that_would_lose_records_is_refused(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1])
    assert _alter(cluster, [1, 2]) == 0
    assert _alter(cluster, [2]) == 0
    _joins(cluster, 2)
    assert cluster.state.topics["t"].assignments[0] == (2,)
    assert _alter(cluster, [1]) == 0
    cluster.death(2)
    cluster.birth(2)
    cluster.death(2)
    assert cluster.partition("t").isr == (2,)
    assert _alter(cluster, [1]) == 0
    assert _ongoing(cluster) == [([1, 2], [1], [2])], "only broker 2, which has failed, has the records"


def test_only_the_requested_reassignments_are_listed(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1], [1])
    _alter(cluster, [2], 0)
    _alter(cluster, [2], 1)
    for wanted, found in (("t", [1]), ("none", [])):
        request = ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics(wanted, [1, 5])])
        reply = cluster.request(list_partition_reassignments, request)
        assert [p.partition_index for topic in reply.topics for p in topic.partitions] == found


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alter"), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("cancel"), st.just([])),
        st.tuples(st.just("join"), st.just([])),
        st.tuples(st.just("die"), st.lists(st.integers(1, 4), min_size=1, max_size=1)),
        st.tuples(st.just("live"), st.lists(st.integers(1, 4), min_size=1, max_size=1)),
    ),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_STEPS)
def test_reassignments_lose_no_records_under_any_sequence_of_events(
    core: MakeCore, steps: list[tuple[str, list[int]]]
) -> None:
    cluster = core([1, 2, 3, 4])
    _make(cluster, "t", [1, 2])
    for step, brokers in steps:
        before = cluster.partition("t")
        if step == "alter":
            _alter(cluster, brokers)
        elif step == "cancel":
            _alter(cluster, None)
        elif step == "join" and before.leader > 0:
            replicas = cluster.state.topics["t"].assignments[0]
            alive = cluster.state.brokers
            _joins(cluster, *(r for r in replicas if r in alive and r not in before.isr))
        elif step == "die":
            cluster.death(brokers[0])
        elif step == "live" and brokers[0] not in cluster.state.brokers:
            cluster.birth(brokers[0])
        after, topic = cluster.partition("t"), cluster.state.topics["t"]
        replicas = topic.assignments[0]
        assert after.isr, "the ISR always has a member"
        assert set(after.isr) <= set(replicas)
        assert step == "join" or set(after.isr) <= set(before.isr), "only the leader adds to the ISR"
        assert after.leader == -1 or after.leader in after.isr
        assert after.leader_epoch >= before.leader_epoch
        if after.leader != before.leader:
            assert after.leader_epoch > before.leader_epoch
        moving = {*topic.adding.get(0, ()), *topic.removing.get(0, ())}
        assert moving <= set(replicas)
        assert (0 in topic.adding or 0 in topic.removing) == bool(_ongoing(cluster))


def test_a_broker_gets_no_more_replicas_than_its_limit(core: MakeCore) -> None:
    cluster = core([1, 2, 3], tidelog_max_partitions_per_broker="2")
    _make(cluster, "t", [1], [1], [2])
    assert _alter(cluster, [2], 0) == 0
    assert _alter(cluster, [2], 1) == ErrorCode.POLICY_VIOLATION
    assert _alter(cluster, [3], 1) == 0
    assert _alter(cluster, None, 0) == 0, "a cancellation needs no room"
