"""Moves replicas (KIP-455) and elects leaders (KIP-460)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.core.cluster_view import partitions_by_topic
from tidelog.client.core.delivery_errors import UnknownTopicError
from tidelog.client.core.request_parts import in_parts
from tidelog.client.rebalance_plan import Assignment, PartitionKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

PREFERRED: Final = 0
UNCLEAN: Final = 1
"""The types of elections in ElectLeaders."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A running move. `replicas` are those of the target, followed by those that will be removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """The current state of the cluster."""

    assignment: Assignment
    racks: Mapping[int, str | None]
    under_way: Mapping[PartitionKey, Reassignment]


def list_reassignments(cluster: Cluster) -> dict[PartitionKey, Reassignment]:
    """Returns all running moves. Raises KafkaError, ClientError."""
    timeout_ms = int(cluster.timeout_s * 1000)
    request = ListPartitionReassignmentsRequest(timeout_ms, None)
    answer = cluster.controller().call(request, ListPartitionReassignmentsResponse, wait_ms=timeout_ms)
    raise_on_error(answer.error_code, "reassignments", answer.error_message)
    return {
        (topic.name, row.partition_index): Reassignment(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def standing_of(cluster: Cluster, topics: Collection[str] = ()) -> Standing:
    """Returns the state of all topics, or of the named ones. Running moves count as finished.

    Raises KafkaError, ClientError.
    """
    view = cluster.describe()
    # Moves are read before the replicas. The target of a move that ends in between is then known. In the
    # other order, its old replicas would count as the final ones.
    under_way = list_reassignments(cluster)
    found = cluster.topics(topics or None)
    for name in topics:
        if name not in found:
            raise UnknownTopicError(f"topic '{name}' does not exist")
    assignment: dict[PartitionKey, tuple[int, ...]] = {}
    for topic in found.values():
        for partition in topic.partitions:
            key = (topic.name, partition.index)
            move = under_way.get(key)
            removing = move.removing if move else ()
            assignment[key] = tuple(
                r for r in (move.replicas if move else partition.replicas) if r not in removing
            )
    return Standing(assignment, {broker.broker_id: broker.rack for broker in view.brokers}, under_way)


def alter_reassignments(cluster: Cluster, wanted: Mapping[PartitionKey, tuple[int, ...] | None]) -> None:
    """Starts moves to these replicas, the preferred leader first. None cancels the running move.

    Partitions are independent. Raises the KafkaError of the first rejected partition, ClientError.
    """
    for part in in_parts(wanted.items()):
        _alter_reassignments(cluster, part)


def _alter_reassignments(cluster: Cluster, wanted: list[tuple[PartitionKey, tuple[int, ...] | None]]) -> None:
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in wanted:
        row = ReassignablePartition(partition, None if replicas is None else list(replicas))
        topics.setdefault(topic, []).append(row)
    timeout_ms = int(cluster.timeout_s * 1000)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms, topics=[ReassignableTopic(name, rows) for name, rows in topics.items()]
    )
    answer = cluster.controller().call(request, AlterPartitionReassignmentsResponse, wait_ms=timeout_ms)
    raise_on_error(answer.error_code, "reassignments", answer.error_message)
    for topic_answer in answer.responses:
        for result in topic_answer.partitions:
            if result.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                continue  # the move finished before it could be cancelled
            subject = f"topic '{topic_answer.name}' partition {result.partition_index}"
            raise_on_error(result.error_code, subject, result.error_message)


@dataclass(frozen=True, slots=True)
class Election:
    """The result of an election. `message` is the broker's, if there is one."""

    code: ErrorCode
    message: str | None


def elect_leaders(
    cluster: Cluster, election_type: int, places: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Election]:
    """Elects the leaders of partitions; `places` None means all partitions.

    With PREFERRED, the first replica becomes the leader if it is in sync. With UNCLEAN, a partition without a
    leader gets any live replica, which may lose records. A partition that needs no election has the code
    ELECTION_NOT_NEEDED or no result. Raises KafkaError, ClientError.
    """
    if places is None:
        return _elect_leaders(cluster, election_type, None)
    found: dict[TopicPartition, Election] = {}
    for part in in_parts(sorted(places)):
        found |= _elect_leaders(cluster, election_type, partitions_by_topic(part))
    return found


def _elect_leaders(
    cluster: Cluster, election_type: int, wanted: Mapping[str, list[int]] | None
) -> dict[TopicPartition, Election]:
    timeout_ms = int(cluster.timeout_s * 1000)
    rows = None if wanted is None else [TopicPartitions(name, indexes) for name, indexes in wanted.items()]
    request = ElectLeadersRequest(election_type, rows, timeout_ms)
    answer = cluster.controller().call(request, ElectLeadersResponse, at_least=1, wait_ms=timeout_ms)
    raise_on_error(answer.error_code, "election of leaders")
    return {
        TopicPartition(topic.topic, row.partition_id): Election(ErrorCode(row.error_code), row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


def elect_preferred_leaders(cluster: Cluster) -> int:
    """Makes the first replica of every partition the leader if it is in sync. Returns how many changed.

    Raises KafkaError, ClientError.
    """
    results = elect_leaders(cluster, PREFERRED)
    return sum(1 for election in results.values() if election.code is ErrorCode.NONE)
