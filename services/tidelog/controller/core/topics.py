"""CreateTopics, CreatePartitions and DeleteTopics, and the completion of topics left half created or deleted.

The rules are those of Kafka's `ReplicationControlManager`, with KIP-464 (defaults) and KIP-516 (topic ids).
The broker that received CreateTopics adds the settings that its response shows from version 5 on.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from tidelog.controller.core.decision import ABSENT, Context, Decision, Erase, Record, Write
from tidelog.controller.core.placement import Assignments, place_replicas
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import (
    PartitionStateEntry,
    TopicConfigEntry,
    TopicEntry,
    partition_state_key,
    topic_config_key,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import ZERO_TOPIC_ID, collision_key, topic_name_problem
from tidelog.rpc.broker_commands import NO_LEADER
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

# As in Kafka's controller: what one request may make at most.
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
USE_DEFAULT: Final = -1
METADATA_TOPIC: Final = "__cluster_metadata"
"""Apache Kafka's controllers keep their log under this name; directories of that name are left alone."""


def create_topics(
    state: ClusterState, context: Context, request: CreateTopicsRequest, api_version: int
) -> Decision[CreateTopicsResponse]:
    """Each topic for itself: refusals stand in the answer beside those that are made."""
    given = Counter(topic.name for topic in request.topics)
    announced: list[Record] = []
    states: list[Record] = []
    results: list[CreatableTopicResult] = []
    made_here: dict[str, str] = {}
    partitions_left = MAX_PARTITIONS_PER_REQUEST
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if given[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _check_name(state, topic.name, made_here)
            configs = _checked_configs(context, topic)
            assignments = _assign(state, context, topic, partitions_left)
        except KafkaError as error:
            results.append(
                CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            )
            continue
        partitions_left -= len(assignments)
        made_here[collision_key(topic.name)] = topic.name
        result = CreatableTopicResult(
            name=topic.name,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
        )
        results.append(result)
        if not request.validate_only:
            entry = TopicEntry(topic.name, context.chance.topic_id(), assignments)
            result.topic_id = entry.topic_id
            # What a crash leaves behind: settings of no topic, which are cleared away, or an announced topic
            # with its settings, which can be finished.
            if configs:
                announced.append(Write(TopicConfigEntry(entry.name, configs)))
            announced.append(Write(entry, ABSENT))
            states += first_states(state, context, entry)
    return Decision((*announced, *states), CreateTopicsResponse(topics=results))


def first_states(state: ClusterState, context: Context, entry: TopicEntry) -> list[Record]:
    return [
        Write(first_state(state, context, entry.name, partition, replicas), ABSENT)
        for partition, replicas in enumerate(entry.assignments)
    ]


def _check_name(state: ClusterState, name: str, made_here: dict[str, str]) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in state.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    colliding = state.topics_colliding_with(name)
    if collision_key(name) in made_here:
        colliding.append(made_here[collision_key(name)])
    if colliding:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {', '.join(colliding)}",
        )


def _checked_configs(context: Context, topic: CreatableTopic) -> dict[str, str]:
    overrides: dict[str, str | None] = {}
    for config in topic.configs:
        if config.name in overrides:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Config {config.name} is given more than once.")
        overrides[config.name] = config.value
    context.rules.settings.validate_topic(overrides)
    return {name: value for name, value in overrides.items() if value is not None}


def _assign(
    state: ClusterState, context: Context, topic: CreatableTopic, partitions_left: int
) -> Assignments:
    if topic.assignments:
        assignments = _manual_assignments(state, topic)
        _check_count(len(assignments), partitions_left)
        return assignments
    if topic.replication_factor < USE_DEFAULT or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < USE_DEFAULT or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    rules = context.rules
    count = rules.num_partitions if topic.num_partitions == USE_DEFAULT else topic.num_partitions
    factor = (
        rules.default_replication_factor
        if topic.replication_factor == USE_DEFAULT
        else topic.replication_factor
    )
    _check_count(count, partitions_left)
    return place_replicas(state.brokers_to_place_on, count, factor, context.chance)


def _check_count(count: int, partitions_left: int) -> None:
    if count > partitions_left:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"One request can't make more than {MAX_PARTITIONS_PER_REQUEST} partitions.",
        )


def _manual_assignments(state: ClusterState, topic: CreatableTopic) -> Assignments:
    if topic.replication_factor != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != USE_DEFAULT:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but number of partitions was not set to -1.",
        )
    by_index: dict[int, CreatableReplicaAssignment] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in by_index:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        by_index[assignment.partition_index] = assignment
    if sorted(by_index) != list(range(len(by_index))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Partitions should be a consecutive 0-based integer sequence.",
        )
    ordered = [by_index[index].broker_ids for index in range(len(by_index))]
    return tuple(check_replicas(state, replicas, len(ordered[0])) for replicas in ordered)


def check_replicas(
    state: ClusterState, replicas: Sequence[int], replication_factor: int, *, already: Container[int] = ()
) -> tuple[int, ...]:
    """What someone chose by hand as one partition's replicas; raises
    KafkaError(INVALID_REPLICA_ASSIGNMENT). Those it has `already` may be dead.
    """
    chosen = "The manual partition assignment"
    problem = None
    if not replicas:
        problem = f"{chosen} includes an empty replica list."
    elif len(set(replicas)) != len(replicas):
        twice = next(broker_id for broker_id in replicas if replicas.count(broker_id) > 1)
        problem = f"{chosen} includes the broker {twice} more than once."
    elif missing := [b for b in replicas if b not in state.brokers and b not in already]:
        problem = f"{chosen} includes broker {missing[0]}, but no such broker is registered."
    elif len(replicas) != replication_factor:
        problem = (
            f"{chosen} includes a partition with {len(replicas)} replica(s), but other partitions have "
            f"{replication_factor} replica(s)."
        )
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return tuple(replicas)


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
            added = _assign_added(state, context, topic, wanted, partitions_left)
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


def _assign_added(
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


_BY_ID_FROM_VERSION: Final = 6
_DISABLED_ERROR_FROM_VERSION: Final = 3


class _Wanted(NamedTuple):
    name: str | None
    topic_id: uuid.UUID


def delete_topics(
    state: ClusterState, context: Context, request: DeleteTopicsRequest, api_version: int
) -> Decision[DeleteTopicsResponse]:
    """The topic's own key goes first: from then on it doesn't exist, and its other keys are only
    left-overs.
    """
    wanted = _wanted(request, api_version)
    if not context.rules.delete_topic_enable:
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED
            if api_version >= _DISABLED_ERROR_FROM_VERSION
            else ErrorCode.INVALID_REQUEST,
            "Topic deletion is disabled by delete.topic.enable.",
        )
    given = Counter(_resolved_name(state, want) for want in wanted)
    records: list[Record] = []
    results: list[DeletableTopicResult] = []
    for want in dict.fromkeys(wanted):
        try:
            topic = _find(state, want)
            if given[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")
        except KafkaError as error:
            results.append(
                DeletableTopicResult(
                    name=want.name,
                    topic_id=want.topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
            )
            continue
        results.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id))
        records += deleted_topic_records(state, topic)
    return Decision(tuple(records), DeleteTopicsResponse(responses=results))


def deleted_topic_records(state: ClusterState, topic: TopicEntry) -> list[Record]:
    records: list[Record] = [Erase(topic.key)]
    if topic.name in state.topic_configs:
        records.append(Erase(topic_config_key(topic.name)))
    stored = sorted(state.partitions.get(topic.name, ()))
    records += [Erase(partition_state_key(topic.name, partition)) for partition in stored]
    return records


def _wanted(request: DeleteTopicsRequest, api_version: int) -> list[_Wanted]:
    if api_version < _BY_ID_FROM_VERSION:
        return [_Wanted(name, ZERO_TOPIC_ID) for name in request.topic_names]
    return [_Wanted(topic.name, topic.topic_id) for topic in request.topics]


def _resolved_name(state: ClusterState, want: _Wanted) -> str | None:
    return want.name if want.name is not None else state.topic_names.get(want.topic_id)


def _find(state: ClusterState, want: _Wanted) -> TopicEntry:
    if want.name is None and want.topic_id == ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if want.name is not None and want.topic_id != ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Both topic name and id were specified.")
    name = _resolved_name(state, want)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    topic = state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def first_state(
    state: ClusterState, context: Context, topic: str, partition: int, replicas: tuple[int, ...]
) -> PartitionStateEntry:
    """Of a partition that never was: every replica that is there to stay is in sync, the first of them
    leads.
    """
    present = tuple(r for r in replicas if r in state.brokers and r not in state.stopping)
    leader = present[0] if present else NO_LEADER
    return PartitionStateEntry(topic, partition, leader, 0, present or replicas, context.controller_epoch)


def finish_half_done(state: ClusterState, context: Context) -> Decision[None]:
    """States of partitions that were only announced; keys of topics that are deleted; old notifications.

    Elections, changes of the ELR and reassignments need nothing here: `settle_partitions` and
    `advance_reassignments` find what is left of them in the state itself.
    """
    records: list[Record] = []
    for topic in state.topics.values():
        stored = state.partitions.get(topic.name, {})
        for partition, replicas in enumerate(topic.assignments):
            if partition not in stored:
                records.append(Write(first_state(state, context, topic.name, partition, replicas), ABSENT))
    for name, stored in state.partitions.items():
        known = len(state.topics[name].assignments) if name in state.topics else 0
        records += [Erase(partition_state_key(name, index)) for index in sorted(stored) if index >= known]
    records += [Erase(topic_config_key(name)) for name in state.topic_configs if name not in state.topics]
    return Decision(tuple(records), None)


def forget_isr_changes(state: ClusterState, context: Context) -> Decision[None]:
    """The states they point to have been read, so the notifications can go, unless written anew since."""
    records = [Erase(key, mod_revision) for key, mod_revision in state.isr_changes.items()]
    return Decision(tuple(records), None)
