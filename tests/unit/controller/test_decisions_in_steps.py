"""Decisions that concern all partitions of a cluster take a step for each of them. Others do not look at
all partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from types import GeneratorType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Core
from tidelog.controller.core.broker_requests import unregister_broker
from tidelog.controller.core.reassignments import alter_partition_reassignments, list_partition_reassignments
from tidelog.controller.core.state import ChangeSet, ClusterState
from tidelog.controller.core.topics import create_partitions, create_topics
from tidelog.metadata.entries import TopicEntry
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tidelog.wire.messages.unregister_broker import UnregisterBrokerRequest

MakeCore = type[Core]
PARTITIONS = 100


def _steps(cluster: Core, decide: Callable[..., Any], request: object) -> int:
    """Returns the number of steps in which a decision is made."""
    decision = decide(cluster.state, cluster.context(), request, 0)
    assert isinstance(decision, GeneratorType), "the decision is made at once"
    return sum(1 for _ in decision)


@pytest.fixture
def moving(core: MakeCore) -> Core:
    """A cluster in which each partition of a topic moves."""
    cluster = core([1, 2, 3])
    assignments = [CreatableReplicaAssignment(index, [1, 2]) for index in range(PARTITIONS)]
    cluster.request(create_topics, CreateTopicsRequest([CreatableTopic("t", -1, -1, assignments)]))
    moves = [ReassignablePartition(index, [2, 3]) for index in range(PARTITIONS)]
    cluster.request(
        alter_partition_reassignments,
        AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", moves)]),
    )
    return cluster


def test_all_reassignments_are_listed_in_steps(moving: Core) -> None:
    everything = ListPartitionReassignmentsRequest()
    (topic,) = moving.request(list_partition_reassignments, everything).topics
    assert len(topic.partitions) == PARTITIONS
    assert _steps(moving, list_partition_reassignments, everything) >= PARTITIONS
    named = [ListPartitionReassignmentsTopics("t", list(range(PARTITIONS)))]
    assert _steps(moving, list_partition_reassignments, ListPartitionReassignmentsRequest(topics=named)) >= (
        PARTITIONS
    )


def test_a_broker_is_removed_in_steps(moving: Core) -> None:
    moving.death(3)
    assert _steps(moving, unregister_broker, UnregisterBrokerRequest(3)) >= PARTITIONS


class UnreadTopics(dict[str, TopicEntry]):
    """Fails when somebody looks at all topics."""

    def _refuse(self) -> Any:
        raise AssertionError("a request about few topics looks at all of them")

    __iter__ = keys = values = items = _refuse


def test_requests_about_few_topics_do_not_count_all_partitions(moving: Core) -> None:
    moving.state.topics = UnreadTopics(moving.state.topics)
    creation = CreateTopicsRequest([CreatableTopic("u", 1, 1)], validate_only=True)
    assert moving.request(create_topics, creation).topics[0].error_code == 0
    addition = CreatePartitionsRequest([CreatePartitionsTopic("t", PARTITIONS + 1, None)], validate_only=True)
    assert moving.request(create_partitions, addition).results[0].error_code == 0
    move = ReassignableTopic("t", [ReassignablePartition(0, [1, 3])])
    reply = moving.request(alter_partition_reassignments, AlterPartitionReassignmentsRequest(topics=[move]))
    assert reply.responses[0].partitions[0].error_code == 0


_topics = st.builds(
    TopicEntry,
    st.sampled_from("abc"),
    st.sampled_from([UUID(int=number) for number in (1, 2)]),
    st.lists(st.lists(st.integers(1, 4), min_size=1, unique=True).map(tuple), min_size=1, max_size=4).map(
        tuple
    ),
)


@given(st.lists(st.tuples(st.booleans(), _topics)))
def test_the_counts_of_partitions_and_replicas_follow_all_changes(
    history: list[tuple[bool, TopicEntry]],
) -> None:
    state = ClusterState()
    for revision, (is_removal, topic) in enumerate(history, 1):
        if is_removal:
            state.apply_removal(topic.key, revision, ChangeSet())
        else:
            named = topic._replace(topic_id=UUID(int=topic.topic_id.int * 256 + ord(topic.name)))
            state.apply(named, revision, revision, ChangeSet())
        partitions = [replicas for known in state.topics.values() for replicas in known.assignments]
        assert state.partition_count == len(partitions)
        assert +state.replica_counts == Counter(chain.from_iterable(partitions))
        assert min(state.replica_counts.values(), default=0) >= 0
