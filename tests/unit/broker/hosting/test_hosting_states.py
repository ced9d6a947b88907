"""The states of hosted partitions: the transitions, and what HostedPartitions shows in each state."""

from __future__ import annotations

import json
import uuid
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.broker.cluster.view import MetadataView
from tidelog.broker.hosting.hosted_partitions import HostedPartitions, Role
from tidelog.broker.hosting.hosting_state import STATES, HostingState
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.metrics import BrokerMetrics, BrokerView
from tidelog.kernel.machine import IllegalTransitionError, Machine
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import PartitionState, TopicState, UpdateMetadata

BROKER_ID, OTHER_BROKER_ID = 1, 2
TOPIC_ID = uuid.UUID(int=7)
PARTITIONS = tuple(TopicPartition("t", number) for number in range(3))
SERVING = (HostingState.LEADING, HostingState.FOLLOWING)


def state_of(topic_partition: TopicPartition) -> PartitionState:
    return PartitionState(
        topic_partition.topic,
        TOPIC_ID,
        topic_partition.partition,
        BROKER_ID,
        0,
        (BROKER_ID,),
        (BROKER_ID,),
        1,
    )


def metadata() -> MetadataView:
    view = MetadataView("cluster")
    states = tuple(map(state_of, PARTITIONS))
    view.apply(UpdateMetadata(1, 1, (), (TopicState("t", TOPIC_ID, states, {}),), is_full=True))
    return view


def replica(*, is_leader: bool) -> Replica:
    leader = BROKER_ID if is_leader else OTHER_BROKER_ID
    return cast(
        Replica,
        SimpleNamespace(
            core=SimpleNamespace(is_leader=is_leader, leader=leader, leader_epoch=1, log_end_offset=0)
        ),
    )


@pytest.mark.parametrize("before", HostingState)
@pytest.mark.parametrize("after", HostingState)
def test_only_the_transitions_of_the_table_are_allowed(before: HostingState, after: HostingState) -> None:
    machine = Machine(STATES, before, lambda: 0)
    if STATES.allows(before, after):
        machine.enter(after, "a test")
        assert machine.state is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"{before.name} can't become {after.name}"):
            machine.enter(after, "a test")
        assert machine.state is before


def test_every_state_can_be_reached_and_left() -> None:
    assert set(STATES.following) == set(HostingState)
    reached = {HostingState.OPENING}.union(*STATES.following.values())
    assert reached == set(HostingState)
    assert [state for state in HostingState if STATES.is_final(state)] == [HostingState.CLOSED]


class HostedModel(RuleBasedStateMachine):
    """Calls every method in any order, and compares HostedPartitions with a map of states."""

    def __init__(self) -> None:
        super().__init__()
        self.hosted = HostedPartitions(metadata(), BROKER_ID, lambda: 0)
        self.states = dict.fromkeys(PARTITIONS, HostingState.CLOSED)
        self.replicas: dict[TopicPartition, Replica] = {}

    def attempt(
        self,
        topic_partition: TopicPartition,
        before: tuple[HostingState, ...],
        after: HostingState,
        call: Any,
    ) -> None:
        """Makes the call, which must fail and change nothing unless the state is one of `before`."""
        if self.states[topic_partition] in before:
            call()
            self.states[topic_partition] = after
            return
        with pytest.raises((IllegalTransitionError, KeyError)):
            call()

    @rule(topic_partition=st.sampled_from(PARTITIONS))
    def open(self, topic_partition: TopicPartition) -> None:
        before = (HostingState.CLOSED, HostingState.FAILED)
        self.attempt(topic_partition, before, HostingState.OPENING, lambda: self.hosted.open(topic_partition))

    @rule(topic_partition=st.sampled_from(PARTITIONS), is_leader=st.booleans())
    def settle(self, topic_partition: TopicPartition, is_leader: bool) -> None:
        taking, role = replica(is_leader=is_leader), Role(state_of(topic_partition), {})
        before = (HostingState.OPENING, *SERVING)
        if self.states[topic_partition] in before:
            self.replicas[topic_partition] = taking
        self.attempt(
            topic_partition,
            before,
            HostingState.SETTLING,
            lambda: self.hosted.settle(topic_partition, taking, role),
        )

    @precondition(lambda self: HostingState.SETTLING in self.states.values())
    @rule(data=st.data())
    def settled(self, data: st.DataObject) -> None:
        settling = [known for known, state in self.states.items() if state is HostingState.SETTLING]
        topic_partition = data.draw(st.sampled_from(settling))
        self.hosted.settled(topic_partition)
        is_leader = self.replicas[topic_partition].core.is_leader
        self.states[topic_partition] = HostingState.LEADING if is_leader else HostingState.FOLLOWING

    @rule(topic_partition=st.sampled_from(PARTITIONS))
    def fail(self, topic_partition: TopicPartition) -> None:
        before = (HostingState.CLOSED, HostingState.OPENING, HostingState.SETTLING)
        role = Role(state_of(topic_partition), {})
        self.attempt(topic_partition, before, HostingState.FAILED, lambda: self.hosted.fail(role, "a test"))

    @rule(topic_partition=st.sampled_from(PARTITIONS))
    def close(self, topic_partition: TopicPartition) -> None:
        before = (HostingState.CLOSED, HostingState.FAILED, *SERVING)
        self.attempt(topic_partition, before, HostingState.CLOSED, lambda: self.hosted.close(topic_partition))

    @rule(kept=st.sets(st.sampled_from(PARTITIONS)))
    def close_failed(self, kept: set[TopicPartition]) -> None:
        self.hosted.close_failed(except_for=kept)
        for topic_partition, state in self.states.items():
            if state is HostingState.FAILED and topic_partition not in kept:
                self.states[topic_partition] = HostingState.CLOSED

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        assert {known: self.hosted.state(known) for known in PARTITIONS} == self.states

    @invariant()
    def only_leaders_and_followers_are_served(self) -> None:
        serving = {known for known, state in self.states.items() if state in SERVING}
        assert self.hosted.replicas == {known: self.replicas[known] for known in serving}
        for topic_partition in set(PARTITIONS) - serving:
            with pytest.raises(KafkaError) as refused:
                self.hosted.replica(*topic_partition)
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    @invariant()
    def a_settling_replica_is_found_but_not_served(self) -> None:
        for topic_partition, state in self.states.items():
            is_settling = state is HostingState.SETTLING
            assert self.hosted.awaits_role(topic_partition) == is_settling
            found = self.hosted.find(topic_partition)
            if is_settling or state in SERVING:
                assert found is self.replicas[topic_partition]
            else:
                assert found is None

    @invariant()
    def partitions_without_a_replica_are_offline(self) -> None:
        without = [s for s in self.states.values() if s is not HostingState.SETTLING and s not in SERVING]
        assert self.hosted.offline_count == len(without)

    @invariant()
    def failed_partitions_are_tried_again(self) -> None:
        failed = {known for known, state in self.states.items() if state is HostingState.FAILED}
        roles = self.hosted.failed_roles()
        assert {TopicPartition(role.state.topic, role.state.partition) for role in roles} == failed


TestHostedPartitions = HostedModel.TestCase


def test_a_replica_tells_how_it_came_to_its_state() -> None:
    hosted, times = HostedPartitions(metadata(), BROKER_ID, lambda: next(times)), count(1_000)
    failing, leading, _ = PARTITIONS
    for topic_partition in (failing, leading):
        hosted.open(topic_partition)
        hosted.settle(topic_partition, replica(is_leader=True), Role(state_of(topic_partition), {}))
        if topic_partition is leading:
            hosted.settled(topic_partition)
    hosted.fail(Role(state_of(failing), {}), "the disk is gone")
    assert hosted.stories() == [
        (
            failing,
            HostingState.FAILED,
            (
                (1_000, HostingState.OPENING, HostingState.SETTLING, "leader 1 in epoch 0"),
                (1_003, HostingState.SETTLING, HostingState.FAILED, "the disk is gone"),
            ),
        )
    ]
    assert [story.topic_partition for story in hosted.stories("t")] == [failing, leading]
    metrics = BrokerMetrics(Telemetry())
    assert json.loads(metrics.replica_stories("")) == {"replicas": [], "hidden": 0}
    metrics.observe(cast(BrokerView, SimpleNamespace(stories=hosted.stories)))
    (shown,) = json.loads(metrics.replica_stories(""))["replicas"]
    failed = {"at_ms": 1_003, "from": "settling", "to": "failed", "reason": "the disk is gone"}
    assert (shown["topic"], shown["partition"], shown["state"]) == ("t", 0, "failed")
    assert shown["story"][-1] == failed
    pages = [json.loads(metrics.replica_stories(f"topic={topic}")) for topic in ("t", "other")]
    assert [len(page["replicas"]) for page in pages] == [2, 0]


TestHostedPartitions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
