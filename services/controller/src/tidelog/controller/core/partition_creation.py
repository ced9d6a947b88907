"""CreatePartitions: more partitions for a topic. Follows Kafka's
`ReplicationControlManager.createPartitions`.
"""

from __future__ import annotations

from collections import Counter

from tidelog.controller.core.context import Context
from tidelog.controller.core.placement import Assignments, place_replicas
from tidelog.controller.core.records import ABSENT, Decision, Record, Write
from tidelog.controller.core.resume import first_state
from tidelog.controller.core.state import ClusterState
from tidelog.controller.core.topic_creation import MAX_PARTITIONS_PER_REQUEST, check_replicas
from tidelog.metadata.entries import TopicEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def create_partitions(
    state: ClusterState, context: Context, request: CreatePartitionsRequest, api_version: int
) -> Decision[CreatePartitionsResponse]:
    given = Counter(topic.name for topic in request.topics)
    records: list[Record] = []
    results: list[CreatePartitionsTopicResult] = []
    partitions_left = MAX_PARTITIONS_PER_REQUEST
    for wanted in {topic.name: topic for topic in request.topics}.values():
        try:
            if given[wanted.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic = state.topics.get(wanted.name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            added = _assign(state, context, topic, wanted, partitions_left)
        except KafkaError as error:
            results.append(
                CreatePartitionsTopicResult(
                    name=wanted.name, error_code=error.code, error_message=error.message
                )
            )
            continue
        partitions_left -= len(added)
        results.append(CreatePartitionsTopicResult(name=wanted.name, error_message=None))
        if not request.validate_only:
            records += _new_partition_records(state, context, topic, added)
    return Decision(tuple(records), CreatePartitionsResponse(results=results))


def _new_partition_records(
    state: ClusterState, context: Context, topic: TopicEntry, added: Assignments
) -> list[Record]:
    records: list[Record] = [Write(topic._replace(assignments=topic.assignments + added))]
    for partition, replicas in enumerate(added, len(topic.assignments)):
        records.append(Write(first_state(state, context, topic.name, partition, replicas), ABSENT))
    return records


def _assign(
    state: ClusterState,
    context: Context,
    topic: TopicEntry,
    wanted: CreatePartitionsTopic,
    partitions_left: int,
) -> Assignments:
    current = len(topic.assignments)
    if wanted.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if wanted.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {current} partition(s); {wanted.count} would not be an "
            "increase.",
        )
    additional = wanted.count - current
    if additional > partitions_left:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"One request can't make more than {MAX_PARTITIONS_PER_REQUEST} partitions.",
        )
    # Of what the first partition is to have, should it be on the move.
    replication_factor = len(set(topic.assignments[0]) - set(topic.removing.get(0, ())))
    if wanted.assignments is None:
        return place_replicas(
            state.brokers_to_place_on,
            additional,
            replication_factor,
            context.chance,
            existing=topic.assignments,
        )
    if len(wanted.assignments) != additional:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified.",
        )
    return tuple(
        check_replicas(state, assignment.broker_ids, replication_factor) for assignment in wanted.assignments
    )
