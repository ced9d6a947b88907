"""Leader elections when brokers register or fail, and on request."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Core, whole
from tidelog.controller.core.commands import commands_for
from tidelog.controller.core.decision import SettingRules
from tidelog.controller.core.elections import elect_leaders, settle_partitions
from tidelog.controller.core.reassignments import advance_reassignments, alter_partition_reassignments
from tidelog.controller.core.state import ChangeSet
from tidelog.controller.core.topics import create_topics
from tidelog.controller.metrics import overview_of
from tidelog.kernel.steps import all_at_once
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import NOT_CONFIRMED, TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, UpdateMetadata
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

MakeCore = type[Core]
PREFERRED, UNCLEAN = 0, 1


def _make(cluster: Core, name: str, *replicas: list[int], unclean: bool = False) -> None:
    assignments = [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(replicas)]
    configs = [CreatableTopicConfig("unclean.leader.election.enable", "true")] if unclean else []
    request = CreateTopicsRequest([CreatableTopic(name, -1, -1, assignments, configs)])
    assert cluster.request(create_topics, request).topics[0].error_code == 0


def test_the_next_replica_in_order_leads(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [2, 3, 1])
    cluster.death(2)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3, 1), 1)
    cluster.death(1)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3,), 1)


def test_a_dead_broker_with_replicas_is_absent(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [2, 1])
    cluster.death(3)
    assert overview_of(cluster.state, 0, {}, 1).absent_brokers == ()
    cluster.death(2)
    assert overview_of(cluster.state, 0, {}, 1).absent_brokers == (2,)


def test_the_last_isr_is_kept_and_only_its_members_may_lead(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    cluster.death(2)
    cluster.birth(3)
    cluster.death(1)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (-1, (1,))
    assert cluster.partition("t").last_known_leader == 1
    cluster.birth(2)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (-1, (1,))
    cluster.birth(1)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (1, (1,))


def test_unclean_election_if_the_topic_allows_it(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2], unclean=True)
    cluster.death(2)
    cluster.birth(3)
    cluster.death(1)
    cluster.birth(2)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))


def test_a_single_broker_that_restarts_leads_at_a_new_epoch_with_one_write(core: MakeCore) -> None:
    cluster = core([1])
    _make(cluster, "t", [1])
    cluster.death(1)
    before = cluster.partition("t")
    assert (before.leader, before.leader_epoch) == (1, 0)
    cluster.birth(1)
    after = cluster.partition("t")
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 1)


def test_a_second_registration_counts_as_a_failure_and_a_return(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    cluster.birth(1)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
    assert cluster.changes.unregistered == {1}


_LIVES = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_LIVES, st.permutations([1, 2, 3, 4]), st.integers(1, 4))
def test_leaders_are_alive_and_in_sync_and_epochs_grow(
    core: MakeCore, lives: list[tuple[bool, int]], order: list[int], factor: int
) -> None:
    cluster = core([1, 2, 3, 4])
    _make(cluster, "t", order[:factor])
    for comes, broker_id in lives:
        before = cluster.partition("t")
        if comes:
            cluster.birth(broker_id)
        else:
            cluster.death(broker_id)
        after = cluster.partition("t")
        alive = cluster.state.brokers.keys()
        assert after.isr
        assert set(after.isr) <= set(order[:factor])
        assert set(after.isr) <= set(before.isr)
        if alive:
            assert after.leader == -1 or (after.leader in after.isr and after.leader in alive)
            assert (after.leader == -1) == (not set(after.isr) & alive)
        if after.leader != before.leader:
            assert after.leader_epoch == before.leader_epoch + 1
        assert not whole(settle_partitions(cluster.state, cluster.context())).records


def test_commands_of_a_failover(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2])
    _make(cluster, "u", [3])
    cluster.changes = ChangeSet()
    cluster.death(1)
    commands = all_at_once(commands_for(cluster.state, cluster.changes, 1, 5))
    lead, update = commands[2]
    assert isinstance(lead, LeaderAndIsr)
    assert [(p.topic, p.leader, p.is_new) for p in lead.partitions] == [("t", 2, False)]
    assert isinstance(update, UpdateMetadata)
    assert [topic.name for topic in update.topics] == ["t"]
    assert [broker.broker_id for broker in update.brokers] == [2, 3]
    assert commands[3] == [update]
    cluster.changes = ChangeSet()
    cluster.birth(1)
    full_lead, full_update = all_at_once(commands_for(cluster.state, cluster.changes, 1, 5))[1]
    assert isinstance(full_lead, LeaderAndIsr)
    assert isinstance(full_update, UpdateMetadata)
    assert full_lead.is_full
    assert full_update.is_full
    assert {topic.name for topic in full_update.topics} == {"t", "u"}


def _elect(cluster: Core, kind: int, partitions: list[TopicPartitions] | None) -> dict[str, dict[int, int]]:
    reply = cluster.request(elect_leaders, ElectLeadersRequest(kind, partitions))
    assert reply.error_code == 0
    return {
        result.topic: {p.partition_id: p.error_code for p in result.partition_result}
        for result in reply.replica_election_results
    }


def test_an_unknown_election_type_is_refused_for_each_partition(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2], [2, 3])
    for wanted, told in (([TopicPartitions("t", [1])], [("t", [1])]), (None, [])):
        reply = cluster.request(elect_leaders, ElectLeadersRequest(9, wanted))
        assert reply.error_code == ErrorCode.INVALID_REQUEST
        results = reply.replica_election_results
        assert [(r.topic, [p.partition_id for p in r.partition_result]) for r in results] == told
        assert all(p.error_code == reply.error_code for r in results for p in r.partition_result)


def test_preferred_election_on_request(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2], [2, 3])
    cluster.request(
        alter_partition_reassignments,
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic("t", [ReassignablePartition(0, [2, 1])])]
        ),
    )
    assert cluster.state.topics["t"].assignments[0] == (2, 1)
    found = _elect(cluster, PREFERRED, [TopicPartitions("t", [0, 1, 5]), TopicPartitions("none", [0])])
    assert found == {
        "t": {0: 0, 1: ErrorCode.ELECTION_NOT_NEEDED, 5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "none": {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert (cluster.partition("t").leader, cluster.partition("t").leader_epoch) == (2, 1)
    assert _elect(cluster, PREFERRED, None) == {"t": {}}
    cluster.death(2)
    assert _elect(cluster, PREFERRED, None) == {
        "t": {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    }


def test_unclean_election_on_request(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    _make(cluster, "t", [1, 2])
    assert _elect(cluster, UNCLEAN, [TopicPartitions("t", [0])]) == {"t": {0: ErrorCode.ELECTION_NOT_NEEDED}}
    cluster.death(2)
    cluster.death(1)
    wanted = [TopicPartitions("t", [0])]
    assert _elect(cluster, UNCLEAN, wanted) == {"t": {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}}
    cluster.birth(2)
    assert _elect(cluster, UNCLEAN, wanted) == {"t": {0: 0}}
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))


def test_another_replica_replaces_a_failed_leader_if_one_can_lead(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    _make(cluster, "alone", [1])
    both = [TopicPartition("t", 0), TopicPartition("alone", 0)]
    epoch = cluster.state.brokers[1].broker_epoch
    cluster.state.note_replicas(1, epoch - 1, both, (), cluster.changes)
    assert not cluster.state.failed_replicas, "the report is of an earlier registration"
    cluster.state.note_replicas(1, epoch, both, (), cluster.changes)
    assert cluster.changes.calls_for_elections
    cluster.settle()
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))
    assert (cluster.partition("alone").leader, cluster.partition("alone").leader_epoch) == (1, 0)
    cluster.leader_writes("t", (2, 1))
    cluster.death(2)
    assert cluster.partition("t").leader == 1, "broker 2 added it to the ISR, so its disk works"
    cluster.birth(1)
    assert not cluster.state.failed_replicas


def _fail_replicas(cluster: Core, broker_id: int, partition: TopicPartition) -> None:
    """The broker reports that the disk of this replica has failed."""
    broker_epoch = cluster.state.brokers[broker_id].broker_epoch
    cluster.state.note_replicas(broker_id, broker_epoch, {partition}, (), cluster.changes)


def _store(cluster: Core, topic: str, **fields: Any) -> None:
    """Stores the state of partition 0 with these fields changed."""
    entry = cluster.partition(topic)._replace(**fields)
    cluster.revision += 1
    cluster.state.apply(entry, cluster.revision, cluster.revision, cluster.changes)


def test_a_failed_elr_member_is_elected_if_no_other_replica_can_lead(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    _store(cluster, "t", leader=-1, isr=(), elr=(1,))
    _fail_replicas(cluster, 1, TopicPartition("t", 0))
    epoch = cluster.partition("t").leader_epoch
    cluster.settle()
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), epoch + 1)
    _fail_replicas(cluster, 1, TopicPartition("t", 0))
    cluster.settle()
    assert cluster.partition("t") == state, "another failure must not start another election"


def test_a_failed_isr_member_is_elected_and_the_isr_stays_whole(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    _fail_replicas(cluster, 2, TopicPartition("t", 0))
    cluster.death(1)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (2, (1, 2), 1)
    cluster.birth(1)
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 2), "a healthy member takes over"


def test_a_failed_replica_whose_log_is_suspect_is_not_elected(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2], unclean=False)
    cluster.death(1, 2)
    cluster.register(1, is_log_suspect=True)
    _fail_replicas(cluster, 1, TopicPartition("t", 0))
    cluster.settle()
    state = cluster.partition("t")
    assert (state.leader, state.isr, state.elr) == (-1, (2,), ())
    cluster.settle()
    assert cluster.partition("t").leader == -1


def test_a_stopping_broker_with_a_failed_replica_is_not_elected(core: MakeCore) -> None:
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2])
    _store(cluster, "t", leader=-1, isr=(), elr=(1,))
    _fail_replicas(cluster, 1, TopicPartition("t", 0))
    cluster.state.note_shutdown(1, cluster.state.brokers[1].broker_epoch, cluster.changes)
    cluster.settle()
    assert cluster.partition("t").leader == -1


def test_an_allowed_unclean_election_comes_before_a_failed_replica(core: MakeCore) -> None:
    """With `unclean.leader.election.enable`, availability counts more than the log of a failed disk."""
    cluster = core([1, 2])
    _make(cluster, "t", [1, 2], unclean=True)
    _store(cluster, "t", leader=-1, isr=(1,), elr=())
    _fail_replicas(cluster, 1, TopicPartition("t", 0))
    cluster.settle()
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))


def test_a_reassignment_does_not_end_with_a_failed_replica_as_leader(core: MakeCore) -> None:
    """A completed reassignment would delete the replicas that can be read."""
    cluster = core([1, 2])
    _make(cluster, "t", [1])
    cluster.request(
        alter_partition_reassignments,
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [ReassignablePartition(0, [2])])]),
    )
    cluster.leader_writes("t", (1, 2))
    _fail_replicas(cluster, 2, TopicPartition("t", 0))
    assert not whole(advance_reassignments(cluster.state, cluster.context())).records


def test_a_topic_whose_settings_are_lost_does_not_take_over_an_unclean_election() -> None:
    """The brokers' default may lose records, and the topic's own setting may have forbidden that."""
    rules = SettingRules(BrokerSettings.parse({"unclean.leader.election.enable": "true"}))
    own = {"unclean.leader.election.enable": "true"}
    assert rules.is_unclean_election_allowed({})
    assert not rules.is_unclean_election_allowed(NOT_CONFIRMED)
    assert rules.is_unclean_election_allowed({**own, **NOT_CONFIRMED})
