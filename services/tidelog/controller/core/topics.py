"""CreateTopics, CreatePartitions and DeleteTopics, the placement of new replicas on brokers, and the
completion of topics that are half created or deleted.

The rules are those of Kafka's `ReplicationControlManager`, with KIP-464 (defaults) and KIP-516 (topic ids).
The broker that received CreateTopics adds the settings that its response shows from version 5 on.

The goals of the placement are those of Kafka's `AdminUtils`: leaders are spread evenly, replicas are spread
evenly, the followers of one broker's leaders are spread over all other brokers, and each partition is on as
many racks as possible if every broker has a rack.

If the racks have equal sizes, the brokers form a ring that alternates between racks, and each partition takes
the next ones. So replicas are even for any number of partitions, and neighbours are on different racks. The
position of the leader within this hand rotates, too. If the racks have different sizes, each replica goes to
the rack, and there to the broker, with the fewest replicas.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import chain
from math import gcd
from typing import Final, NamedTuple, TypeVar

from tidelog.controller.core.decision import (
    ABSENT,
    Chance,
    Context,
    ControllerDecision,
    ControllerRules,
    DecisionSteps,
    Erase,
    Record,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import (
    PartitionStateEntry,
    TopicConfigEntry,
    TopicEntry,
    partition_state_key,
    topic_config_key,
)
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import NO_LEADER
from tidelog.model.topics import ZERO_TOPIC_ID, collision_key, topic_name_problem
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

Assignments = tuple[tuple[int, ...], ...]
_Card = TypeVar("_Card")

# The limit of Kafka's controller for the partitions that one request creates.
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
USE_DEFAULT: Final = -1
METADATA_TOPIC: Final = "__cluster_metadata"
"""The log of Apache Kafka's controllers has this name. tidelog ignores directories with it."""
_DELETED_BY_ID_FROM_VERSION: Final = 6
_DISABLED_ERROR_FROM_VERSION: Final = 3


def create_topics(
    state: ClusterState, context: Context, request: CreateTopicsRequest, api_version: int
) -> DecisionSteps[CreateTopicsResponse]:
    """Creates topics. Each topic has its own result."""
    given = Counter(topic.name for topic in request.topics)
    announced: list[Record] = []
    states: list[Record] = []
    results: list[CreatableTopicResult] = []
    made_here: dict[str, str] = {}
    partitions_left = MAX_PARTITIONS_PER_REQUEST
    room = Room(state, context.rules)
    for topic in {topic.name: topic for topic in request.topics}.values():
        yield
        try:
            if given[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _check_name(state, topic.name, made_here)
            configs = _checked_configs(context, topic)
            assignments = _assign(state, context, topic, partitions_left)
            room.take(assignments)
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
            # The configs come before the topic. If the controller fails in between, configs without a topic
            # are removed later, and an announced topic with its configs is completed.
            if configs:
                announced.append(Write(TopicConfigEntry(entry.name, configs)))
            announced.append(Write(entry, ABSENT))
            for record in first_states(state, context, entry):
                states.append(record)
                yield
    return ControllerDecision((*announced, *states), CreateTopicsResponse(topics=results))


class Room:
    """The partitions that may still be created (`tidelog.max.partitions`,
    `tidelog.max.partitions.per.broker`).
    """

    def __init__(self, state: ClusterState, rules: ControllerRules) -> None:
        self._rules = rules
        self._partitions = state.partition_count
        self._of_broker = Counter(state.replica_counts)

    def take(self, added: Assignments) -> None:
        """Counts new partitions. Raises KafkaError(POLICY_VIOLATION) if there is no room for all of them."""
        rules = self._rules
        if self._partitions + len(added) > rules.tidelog_max_partitions:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The cluster would have more than {rules.tidelog_max_partitions} partitions "
                "(tidelog.max.partitions).",
            )
        self.take_replicas(chain.from_iterable(added))
        self._partitions += len(added)

    def take_replicas(self, broker_ids: Iterable[int]) -> None:
        """Counts new replicas on these brokers. Raises KafkaError(POLICY_VIOLATION) if one has no room."""
        limit, new = self._rules.tidelog_max_partitions_per_broker, Counter(broker_ids)
        for broker_id, count in new.items():
            if self._of_broker[broker_id] + count > limit:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"Broker {broker_id} would have more than {limit} partitions "
                    "(tidelog.max.partitions.per.broker).",
                )
        self._of_broker.update(new)


def first_states(state: ClusterState, context: Context, entry: TopicEntry) -> Iterator[Record]:
    for partition, replicas in enumerate(entry.assignments):
        yield first_state(state, context, entry.name, partition, replicas)


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
            f"One request cannot create more than {MAX_PARTITIONS_PER_REQUEST} partitions.",
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
    """Returns the replicas that a client assigned to one partition. Raises
    KafkaError(INVALID_REPLICA_ASSIGNMENT). Replicas that the partition has `already` may be dead.
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
) -> DecisionSteps[CreatePartitionsResponse]:
    given = Counter(topic.name for topic in request.topics)
    records: list[Record] = []
    results: list[CreatePartitionsTopicResult] = []
    partitions_left = MAX_PARTITIONS_PER_REQUEST
    room = Room(state, context.rules)
    for wanted in {topic.name: topic for topic in request.topics}.values():
        yield
        try:
            if given[wanted.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic = state.topics.get(wanted.name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            added = _assign_added(state, context, topic, wanted, partitions_left)
            room.take(added)
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
            for record in _new_partition_records(state, context, topic, added):
                records.append(record)
                yield
    return ControllerDecision(tuple(records), CreatePartitionsResponse(results=results))


def _new_partition_records(
    state: ClusterState, context: Context, topic: TopicEntry, added: Assignments
) -> Iterator[Record]:
    yield Write(topic._replace(assignments=topic.assignments + added))
    for partition, replicas in enumerate(added, len(topic.assignments)):
        yield first_state(state, context, topic.name, partition, replicas)


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
            f"One request cannot create more than {MAX_PARTITIONS_PER_REQUEST} partitions.",
        )
    # The replication factor is that of the first partition's target, if it is under reassignment.
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


def first_state(
    state: ClusterState, context: Context, topic: str, partition: int, replicas: tuple[int, ...]
) -> Write:
    """Returns the record of a new partition: every available replica is in sync, and the first one leads."""
    present = tuple(r for r in replicas if r in state.brokers and r not in state.stopping)
    leader = present[0] if present else NO_LEADER
    isr = present or replicas
    return Write(PartitionStateEntry(topic, partition, leader, 0, isr, context.controller_epoch), ABSENT)


def place_replicas(
    brokers: Sequence[BrokerRegistration],
    partition_count: int,
    replication_factor: int,
    chance: Chance,
    *,
    existing: Collection[tuple[int, ...]] = (),
) -> Assignments:
    """Returns the replicas of `partition_count` partitions, preferred leaders first.

    `brokers` are the candidates. `existing` contains the topic's partitions so far; new partitions go to
    other brokers if possible. Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are too few brokers.
    """
    count = len(brokers)
    if replication_factor > count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {count} broker(s) are registered.",
        )
    start = chance.below(count)
    table = _Table([*brokers[start:], *brokers[:start]])
    for replicas in existing:
        table.count(replicas)
    if table.has_even_racks:
        return tuple(table.deal(replication_factor, turn) for turn in range(partition_count))
    return tuple(table.give(replication_factor) for _ in range(partition_count))


class _Table:
    """The racks, their brokers, and the number of replicas that each broker has received."""

    def __init__(self, brokers: Sequence[BrokerRegistration]) -> None:
        knows_racks = all(broker.rack is not None for broker in brokers)
        self._rack_of = {b.broker_id: b.rack if knows_racks else None for b in brokers}
        self._racks: dict[str | None, list[int]] = {}
        for broker in brokers:
            self._racks.setdefault(self._rack_of[broker.broker_id], []).append(broker.broker_id)
        self._order = list(self._racks)
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()
        # Counts (leader, position, follower), so that different brokers take over from a leader that fails.
        self._followers: Counter[tuple[int, int, int]] = Counter()
        self._ring: list[int] = []

    @property
    def has_even_racks(self) -> bool:
        return len({len(members) for members in self._racks.values()}) == 1

    def count(self, replicas: tuple[int, ...]) -> None:
        leader = replicas[0]
        self._leaders[leader] += 1
        for place, broker_id in enumerate(replicas):
            self._replicas[broker_id] += 1
            self._followers[leader, place, broker_id] += 1

    def deal(self, replication_factor: int, turn: int) -> tuple[int, ...]:
        """Returns the next hand. In as many turns as there are brokers, each broker receives equally many
        replicas and leads once.
        """
        size = len(self._rack_of)
        if turn % size == 0:
            self._ring = self._next_ring()
        hands = [self._ring[(turn * replication_factor + i) % size] for i in range(replication_factor)]
        # The same hand returns after size / gcd turns; then its next member leads.
        repeats = gcd(size, replication_factor)
        due = hands[turn % size * repeats // size]
        leader = min(hands, key=lambda b: (self._leaders[b], b != due))
        return self._in_order(leader, [broker_id for broker_id in hands if broker_id != leader])

    def give(self, replication_factor: int) -> tuple[int, ...]:
        """Returns the brokers with the fewest replicas, for racks of different sizes."""
        leader = min(self._rack_of, key=lambda b: (self._leaders[b], self._replicas[b]))
        chosen = [leader]
        on_rack = Counter([self._rack_of[leader]])
        while len(chosen) < replication_factor:
            others = [broker_id for broker_id in self._rack_of if broker_id not in chosen]
            follower = min(others, key=lambda b: (on_rack[self._rack_of[b]], self._replicas[b]))
            chosen.append(follower)
            on_rack[self._rack_of[follower]] += 1
        return self._in_order(leader, chosen[1:])

    def _next_ring(self) -> list[int]:
        """Returns one broker of each rack, then the next of each rack. Brokers with the fewest replicas come
        first. The order differs each time, so that the neighbours differ.
        """
        racks = self._order = _shuffled(self._order)
        for steps, rack in enumerate(racks):
            members = self._racks[rack]
            turned = _shuffled(members[steps % len(members) :] + members[: steps % len(members)])
            self._racks[rack] = sorted(turned, key=lambda broker_id: self._replicas[broker_id])
        return [b for block in zip(*(self._racks[rack] for rack in racks), strict=True) for b in block]

    def _in_order(self, leader: int, followers: list[int]) -> tuple[int, ...]:
        replicas = [leader]
        while followers:
            place = len(replicas)
            following = min(followers, key=lambda b: self._followers[leader, place, b])
            followers.remove(following)
            replicas.append(following)
        self.count(tuple(replicas))
        return tuple(replicas)


def _shuffled(deck: list[_Card]) -> list[_Card]:
    """Returns every second element, then the others, so that no neighbours remain neighbours."""
    return deck[1::2] + deck[::2]


class _Wanted(NamedTuple):
    name: str | None
    topic_id: uuid.UUID


def delete_topics(
    state: ClusterState, context: Context, request: DeleteTopicsRequest, api_version: int
) -> DecisionSteps[DeleteTopicsResponse]:
    """Deletes topics. The topic's own key is deleted first: without it the topic does not exist, and its
    other keys can be removed later.
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
        yield
        try:
            name = _resolved_name(state, want)
            if name is not None and given[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")
            topic = _find(state, want)
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
    return ControllerDecision(tuple(records), DeleteTopicsResponse(responses=results))


def deleted_topic_records(state: ClusterState, topic: TopicEntry) -> list[Record]:
    records: list[Record] = [Erase(topic.key)]
    if topic.name in state.topic_configs:
        records.append(Erase(topic_config_key(topic.name)))
    stored = sorted(state.partitions.get(topic.name, ()))
    records += [Erase(partition_state_key(topic.name, partition)) for partition in stored]
    return records


def _wanted(request: DeleteTopicsRequest, api_version: int) -> list[_Wanted]:
    if api_version < _DELETED_BY_ID_FROM_VERSION:
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


def finish_half_done(state: ClusterState, context: Context) -> DecisionSteps[None]:
    """Writes the missing states of announced partitions and deletes the remaining keys of deleted topics.

    Elections, changes of the ELR and reassignments are not handled here: `settle_partitions` and
    `advance_reassignments` find their incomplete work in the state itself.
    """
    records: list[Record] = []
    for topic in state.topics.values():
        stored = state.partitions.get(topic.name, {})
        yield
        for partition, replicas in enumerate(topic.assignments):
            if partition not in stored:
                records.append(first_state(state, context, topic.name, partition, replicas))
    for name, stored in state.partitions.items():
        yield
        known = len(state.topics[name].assignments) if name in state.topics else 0
        records += [Erase(partition_state_key(name, index)) for index in sorted(stored) if index >= known]
    records += [Erase(topic_config_key(name)) for name in state.topic_configs if name not in state.topics]
    return ControllerDecision(tuple(records), None)


def forget_isr_changes(state: ClusterState, context: Context) -> ControllerDecision[None]:
    """Deletes the notifications whose states have been read, unless they were written again since."""
    records = [Erase(key, mod_revision) for key, mod_revision in state.isr_changes.items()]
    return ControllerDecision(tuple(records), None)
