"""CreateTopics: every rule of Kafka's for a new topic, then its keys.

Follows Kafka's `ReplicationControlManager.createTopics` and KIP-464 (defaults). The settings that the answer
tells from v5 on are added by the broker that was asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Final

from tidelog.controller.core.context import Context
from tidelog.controller.core.placement import Assignments, place_replicas
from tidelog.controller.core.records import ABSENT, Decision, Record, Write
from tidelog.controller.core.resume import first_state
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import TopicConfigEntry, TopicEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import collision_key, topic_name_problem
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
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
