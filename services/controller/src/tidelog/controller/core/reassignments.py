"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

For now only what moves no data: another order of the same replicas (another preferred leader) is done at
once, the replicas that a partition has already are accepted, a target that can't be is refused as Kafka
refuses it. Everything else is refused with INVALID_REPLICA_ASSIGNMENT; so no reassignment is ever under
way.
"""

from __future__ import annotations

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision, Record, Write
from tidelog.controller.core.state import ClusterState
from tidelog.controller.core.topic_creation import check_replicas
from tidelog.metadata.entries import TopicEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def alter_partition_reassignments(
    state: ClusterState, context: Context, request: AlterPartitionReassignmentsRequest, api_version: int
) -> Decision[AlterPartitionReassignmentsResponse]:
    records: list[Record] = []
    responses = []
    for wanted in request.topics:
        topic = state.topics.get(wanted.name)
        changed = topic
        partition_results = []
        for target in wanted.partitions:
            code, message = ErrorCode.NONE, None
            try:
                if changed is None or not 0 <= target.partition_index < len(changed.assignments):
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"There is no partition {target.partition_index} of topic '{wanted.name}'.",
                    )
                changed = _reordered(state, changed, target, request.allow_replication_factor_change)
            except KafkaError as error:
                code, message = error.code, error.message
            partition_results.append(ReassignablePartitionResponse(target.partition_index, code, message))
        responses.append(ReassignableTopicResponse(wanted.name, partition_results))
        if changed is not None and changed != topic:
            records.append(Write(changed))
    return Decision(
        tuple(records),
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        ),
    )


def list_partition_reassignments(
    state: ClusterState, context: Context, request: ListPartitionReassignmentsRequest, api_version: int
) -> Decision[ListPartitionReassignmentsResponse]:
    wanted = (
        None
        if request.topics is None
        else {topic.name: set(topic.partition_indexes) for topic in request.topics}
    )
    topics = []
    for name, topic in state.topics.items():
        if wanted is not None and name not in wanted:
            continue
        ongoing = [
            OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(topic.assignments[index]),
                adding_replicas=list(topic.adding.get(index, ())),
                removing_replicas=list(topic.removing.get(index, ())),
            )
            for index in sorted({*topic.adding, *topic.removing})
            if wanted is None or index in wanted[name]
        ]
        if ongoing:
            topics.append(OngoingTopicReassignment(name, ongoing))
    return Decision((), ListPartitionReassignmentsResponse(error_message=None, topics=topics))


def _reordered(
    state: ClusterState, topic: TopicEntry, target: ReassignablePartition, allow_factor_change: bool
) -> TopicEntry:
    index = target.partition_index
    current = topic.assignments[index]
    if target.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress.")
    replicas = check_replicas(state, target.replicas, len(target.replicas))
    if len(replicas) != len(current) and not allow_factor_change:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current)} to {len(replicas)}",
        )
    if set(replicas) != set(current):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "This version of tidelog can't move replicas to other brokers yet.",
        )
    return topic._replace(
        assignments=topic.assignments[:index] + (replicas,) + topic.assignments[index + 1 :]
    )
