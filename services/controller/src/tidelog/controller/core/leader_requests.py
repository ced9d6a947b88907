"""ElectLeaders (KIP-183, KIP-460): the preferred leader, or with `unclean` any replica alive."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from tidelog.controller.core.context import Context
from tidelog.controller.core.elections import next_state
from tidelog.controller.core.leader_balance import led_by_preferred
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import NO_LEADER
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


class ElectionType(IntEnum):
    """Kafka's `ElectionType`; version 0 of the request means PREFERRED."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leaders(
    state: ClusterState, context: Context, request: ElectLeadersRequest, api_version: int
) -> Decision[ElectLeadersResponse]:
    """Without `topic_partitions`: of every partition there is; those that need none are then left out of
    the answer.
    """
    if request.election_type not in ElectionType.__members__.values():
        return Decision((), ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
    unclean = request.election_type == ElectionType.UNCLEAN
    records: list[Record] = []
    results: list[ReplicaElectionResult] = []
    for name, partitions in _wanted(state, request):
        partition_results = []
        for partition in partitions:
            try:
                records.append(_elect(state, context, name, partition, unclean=unclean))
                partition_results.append(PartitionResult(partition, ErrorCode.NONE, None))
            except KafkaError as error:
                if request.topic_partitions is None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                partition_results.append(PartitionResult(partition, error.code, error.message))
        if partition_results:
            results.append(ReplicaElectionResult(name, partition_results))
    return Decision(tuple(records), ElectLeadersResponse(replica_election_results=results))


def _wanted(state: ClusterState, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return [(name, range(len(topic.assignments))) for name, topic in state.topics.items()]
    return [(topic.topic, dict.fromkeys(topic.partitions)) for topic in request.topic_partitions]


def _elect(state: ClusterState, context: Context, name: str, partition: int, *, unclean: bool) -> Record:
    topic = state.topics.get(name)
    stored = state.partitions.get(name, {}).get(partition)
    if topic is None or stored is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {partition} of topic '{name}'."
        )
    replicas = topic.assignments[partition]
    if unclean:
        entry = _elect_any(state, context, replicas, stored)
    else:
        entry = _elect_preferred(state, context, replicas, stored)
    return Write(entry, stored.mod_revision)


def _elect_any(
    state: ClusterState, context: Context, replicas: tuple[int, ...], stored: StoredPartition
) -> PartitionStateEntry:
    if stored.state.leader != NO_LEADER:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
    entry = next_state(state, context, replicas, stored, unclean=True)
    if entry is None or entry.leader == NO_LEADER:
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is alive.")
    return entry


def _elect_preferred(
    state: ClusterState, context: Context, replicas: tuple[int, ...], stored: StoredPartition
) -> PartitionStateEntry:
    preferred = replicas[0]
    if stored.state.leader == preferred:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred leader leads already.")
    entry = led_by_preferred(state, context, replicas, stored)
    if entry is None:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader {preferred} is not alive or not in the ISR.",
        )
    return entry
