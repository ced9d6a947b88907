"""Decisions that concern all partitions of a cluster take a step for each of them."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

import pytest

from controllerlab import Core
from tidelog.controller.core.broker_removal import unregister_broker
from tidelog.controller.core.reassignments import alter_partition_reassignments, list_partition_reassignments
from tidelog.controller.core.topic_creation import create_topics
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
