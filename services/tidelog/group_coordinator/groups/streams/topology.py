"""The topology of a streams group (KIP-1071), and what it means for the topics that exist.

A topology consists of subtopologies. Each subtopology reads source topics and repartition topics, and keeps
state in changelog topics. `configure` decides how many tasks each subtopology has and which internal topics
are missing, by the rules of Kafka's `InternalTopicManager`.

Kafka fixes the number of partitions of an internal topic in this order: repartition topics in the order in
which the data flows, then the topics of each copartition group, then changelog topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, TypeAlias

from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import INTERNAL_TOPICS, topic_name_problem
from tidelog.wire.messages import streams_group_heartbeat as heartbeat
from tidelog.wire.messages.records import streams_group_topology as record

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""Tasks as partition numbers by subtopology id. No subtopology has an empty set."""

PartitionCountOf: TypeAlias = Callable[[str], int | None]
"""Returns the number of partitions of a topic, or None if the topic does not exist."""

DEFAULT_REPLICATION_FACTOR: Final = -1
"""The value with which CreateTopics takes the replication factor from `default.replication.factor`."""
NAMED_TOPICS: Final = 3
"""The number of topics that a status names. It only counts further topics."""


class StreamsStatus(IntEnum):
    """The code of a status in StreamsGroupHeartbeatResponse, named as in Kafka."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A repartition topic or changelog topic as the client defines it."""

    name: str
    partitions: int = 0
    """The number of partitions that the client demands, or 0 if it follows from other topics."""
    replication_factor: int = 0
    """The replication factor, or 0 for the default of the cluster."""
    configs: tuple[tuple[str, str], ...] = ()
    """The settings of the topic as (name, value)."""


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Topics of one subtopology that must have the same number of partitions, as indexes."""

    source_topics: tuple[int, ...] = ()
    """Indexes in `Subtopology.source_topics`."""
    repartition_source_topics: tuple[int, ...] = ()
    """Indexes in `Subtopology.repartition_source_topics`."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a topology that runs as one kind of task."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    def read_topics(self) -> Iterator[str]:
        """Yields the topics whose records this subtopology reads, other than changelogs."""
        yield from self.source_topics
        for topic in self.repartition_source_topics:
            yield topic.name


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology. Two topologies are equal under the same conditions as Kafka's `StreamsTopology`."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    def required_topics(self) -> set[str]:
        """Returns the topics whose changes may change the configured topology."""
        return {
            name
            for subtopology in self.subtopologies.values()
            for name in (
                *subtopology.read_topics(),
                *(topic.name for topic in subtopology.state_changelog_topics),
            )
        }


def texts_of(message: heartbeat.Topology) -> Iterator[str]:
    """Yields all texts of a heartbeat's topology."""
    for subtopology in message.subtopologies:
        yield subtopology.subtopology_id
        yield from subtopology.source_topics
        yield from subtopology.source_topic_regex
        yield from subtopology.repartition_sink_topics
        for topic in chain(subtopology.repartition_source_topics, subtopology.state_changelog_topics):
            yield topic.name
            for config in topic.topic_configs:
                yield config.key
                yield config.value


def topology_of_request(message: heartbeat.Topology) -> Topology:
    """Returns the topology of a heartbeat.

    Raises KafkaError: INVALID_REQUEST for a regular expression, which Kafka 4.3 does not support either, and
    STREAMS_INVALID_TOPOLOGY for everything that contradicts itself. Kafka answers some contradictions with
    UNKNOWN_SERVER_ERROR.
    """
    _check_topic_names(message)
    if any(subtopology.source_topic_regex for subtopology in message.subtopologies):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Regular expressions for source topics are not supported yet."
        )
    for changelog in (topic for one in message.subtopologies for topic in one.state_changelog_topics):
        if changelog.partitions:
            _refuse(
                f"Changelog topic {changelog.name} must have an undefined partition count, "
                f"but it is set to {changelog.partitions}."
            )
    if message.epoch < 0:
        _refuse(f"The topology epoch must be non-negative, but it is {message.epoch}.")
    topology = _from_message(message)
    if len(topology.subtopologies) < len(message.subtopologies):
        _refuse("Two subtopologies have the same id.")
    for subtopology in topology.subtopologies.values():
        _check_subtopology(subtopology)
    return topology


def topology_of_record(value: record.StreamsGroupTopologyValue) -> Topology:
    """Returns the topology that `record_of` has written."""
    return _from_message(value)


def record_of(topology: Topology) -> record.StreamsGroupTopologyValue:
    """Returns the value of the record that keeps this topology."""
    return record.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            record.Subtopology(
                subtopology_id=subtopology.subtopology_id,
                source_topics=list(subtopology.source_topics),
                repartition_sink_topics=list(subtopology.repartition_sink_topics),
                repartition_source_topics=_record_topics(subtopology.repartition_source_topics),
                state_changelog_topics=_record_topics(subtopology.state_changelog_topics),
                copartition_groups=[
                    record.CopartitionGroup(
                        source_topics=list(group.source_topics),
                        repartition_source_topics=list(group.repartition_source_topics),
                    )
                    for group in subtopology.copartition_groups
                ],
            )
            for subtopology in topology.subtopologies.values()
        ],
    )


def _record_topics(topics: Iterable[TopicInfo]) -> list[record.TopicInfo]:
    return [
        record.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[record.TopicConfig(name, value) for name, value in topic.configs],
        )
        for topic in topics
    ]


def _from_message(message: heartbeat.Topology | record.StreamsGroupTopologyValue) -> Topology:
    return Topology(
        message.epoch,
        MappingProxyType(
            {
                subtopology.subtopology_id: Subtopology(
                    subtopology.subtopology_id,
                    tuple(subtopology.source_topics),
                    tuple(subtopology.repartition_sink_topics),
                    _topic_infos(subtopology.repartition_source_topics),
                    _topic_infos(subtopology.state_changelog_topics),
                    tuple(
                        CopartitionGroup(tuple(group.source_topics), tuple(group.repartition_source_topics))
                        for group in subtopology.copartition_groups
                    ),
                )
                for subtopology in message.subtopologies
            }
        ),
    )


def _topic_infos(topics: Iterable[heartbeat.TopicInfo | record.TopicInfo]) -> tuple[TopicInfo, ...]:
    return tuple(
        TopicInfo(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            tuple((config.key, config.value) for config in topic.topic_configs),
        )
        for topic in topics
    )


def _refuse(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def _check_topic_names(message: heartbeat.Topology) -> None:
    """Raises KafkaError (STREAMS_INVALID_TOPOLOGY)."""
    names = dict.fromkeys(
        name
        for subtopology in message.subtopologies
        for name in (
            *subtopology.source_topics,
            *subtopology.repartition_sink_topics,
            *(topic.name for topic in subtopology.repartition_source_topics),
            *(topic.name for topic in subtopology.state_changelog_topics),
        )
    )
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        _refuse(
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
        )
    invalid = [name for name in names if topic_name_problem(name) is not None]
    if invalid:
        _refuse(f"Topic names {_first(invalid, ',')} are not valid topic names.")


def _check_subtopology(subtopology: Subtopology) -> None:
    """Raises KafkaError (STREAMS_INVALID_TOPOLOGY)."""
    for topic in subtopology.repartition_source_topics:
        if topic.partitions < 0:
            _refuse(f"Repartition topic {topic.name} has the partition count {topic.partitions}.")
    for topics in (subtopology.repartition_source_topics, subtopology.state_changelog_topics):
        names = [topic.name for topic in topics]
        if len(set(names)) < len(names):
            _refuse(f"Subtopology {subtopology.subtopology_id} names an internal topic twice.")
        for topic in topics:
            if len(dict(topic.configs)) < len(topic.configs):
                _refuse(f"Internal topic {topic.name} names a setting twice.")
    for group in subtopology.copartition_groups:
        for indexes, those in (
            (group.source_topics, len(subtopology.source_topics)),
            (group.repartition_source_topics, len(subtopology.repartition_source_topics)),
        ):
            if any(not 0 <= index < those for index in indexes):
                _refuse(
                    f"A copartition group of subtopology {subtopology.subtopology_id} "
                    "refers to a topic that the subtopology does not have."
                )


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition topic or changelog topic with its decided number of partitions."""

    name: str
    partitions: int
    replication_factor: int
    """The replication factor, or -1 for the default of the cluster, as in CreateTopics."""
    configs: tuple[tuple[str, str], ...]
    """The settings of the topic as (name, value)."""


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology with its number of tasks and the sizes of its internal topics."""

    task_count: int
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: Mapping[str, InternalTopic]
    state_changelog_topics: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        """Whether the tasks have state in changelogs, so that they may have standby tasks."""
        return bool(self.state_changelog_topics)


class TopologyProblem(NamedTuple):
    """The reason why no task can be assigned, as a status of the heartbeat's response tells it."""

    status: StreamsStatus
    detail: str


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """The result of `configure`."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    """The subtopologies in the order of their ids, or None if they could not be configured."""
    missing_internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    """The internal topics to create, by name."""
    problem: TopologyProblem | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class _TopologyProblemError(Exception):
    def __init__(self, status: StreamsStatus, detail: str) -> None:
        super().__init__(detail)
        self.problem = TopologyProblem(status, detail)


def configure(topology: Topology, partition_count_of: PartitionCountOf) -> ConfiguredTopology:
    """Decides the number of tasks of each subtopology and the internal topics to create.

    The result has a problem if a source topic is missing, if topics are not partitioned as the topology needs
    them, or if an internal topic is missing. Raises KafkaError (STREAMS_INVALID_TOPOLOGY) if no topics would
    fit the topology.
    """
    try:
        _check_sources(topology, partition_count_of)
        decided = _decide_partition_counts(topology, partition_count_of)
        subtopologies = {
            subtopology_id: _configure_subtopology(
                topology.subtopologies[subtopology_id], decided, partition_count_of
            )
            for subtopology_id in sorted(topology.subtopologies)
        }
        missing = _missing_internal_topics(subtopologies, partition_count_of)
    except _TopologyProblemError as error:
        return ConfiguredTopology(topology.epoch, None, problem=error.problem)
    problem = None
    if missing:
        problem = TopologyProblem(
            StreamsStatus.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_summary(missing)}"
        )
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def endpoint_partitions(
    tasks: Mapping[str, Collection[int]],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    partition_count_of: PartitionCountOf,
) -> dict[str, list[int]]:
    """Returns the partitions, by topic, that a member with these tasks reads (EndpointToPartitionsManager).

    A task has the number of a partition. A topic with fewer partitions than its subtopology has tasks has no
    partition for some tasks. Kafka 4.3 names the first task numbers then, even if no such partition exists.
    """
    found: dict[str, list[int]] = {}
    for subtopology_id, partitions in sorted(tasks.items()):
        subtopology = subtopologies.get(subtopology_id)
        if subtopology is None:
            continue
        for topic in sorted({*subtopology.source_topics, *subtopology.repartition_source_topics}):
            count = partition_count_of(topic)
            if count is not None:
                found[topic] = sorted(partition for partition in partitions if partition < count)
    return found


def _summary(topics: Iterable[str]) -> str:
    return _first(sorted(topics), ", ")


def _first(names: list[str], separator: str) -> str:
    """Returns the first names, and the number of the others."""
    further = len(names) - NAMED_TOPICS
    return separator.join(names[:NAMED_TOPICS]) + (f" and {further} additional topics" if further > 0 else "")


def _check_sources(topology: Topology, partition_count_of: PartitionCountOf) -> None:
    missing = {
        name
        for subtopology in topology.subtopologies.values()
        for name in subtopology.source_topics
        if partition_count_of(name) is None
    }
    if missing:
        raise _TopologyProblemError(
            StreamsStatus.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing."
        )


def _decide_partition_counts(topology: Topology, partition_count_of: PartitionCountOf) -> dict[str, int]:
    """Returns the numbers of partitions that the internal topics should have, by name."""
    subtopologies = list(topology.subtopologies.values())
    decided = _repartition_counts(subtopologies, partition_count_of)

    def known_count(name: str) -> int:
        existing = partition_count_of(name)
        return decided[name] if existing is None else existing

    fixed = {
        topic.name
        for subtopology in subtopologies
        for topic in subtopology.repartition_source_topics
        if topic.partitions
    }
    for subtopology in subtopologies:
        for group in subtopology.copartition_groups:
            repartition = {
                subtopology.repartition_source_topics[index].name for index in group.repartition_source_topics
            }
            source = {subtopology.source_topics[index] for index in group.source_topics} - repartition
            decided.update(_copartitioned_counts(source, repartition, fixed, known_count))
    for subtopology in subtopologies:
        count = max(map(known_count, subtopology.read_topics()), default=None)
        if count is None:
            _refuse(f"No source topics found for subtopology {subtopology.subtopology_id}")
        decided.update((topic.name, count) for topic in subtopology.state_changelog_topics)
    return decided


def _repartition_counts(
    subtopologies: list[Subtopology], partition_count_of: PartitionCountOf
) -> dict[str, int]:
    """Returns the numbers of partitions of all repartition topics (Kafka's `RepartitionTopics`).

    A repartition topic without a demanded number gets the largest number of partitions that the writing
    subtopology is known to read. Kafka repeats passes over all subtopologies until it knows all numbers. This
    code visits each subtopology only once, in the pass in which Kafka would first know one of its numbers.
    """
    counts = {
        topic.name: topic.partitions
        for subtopology in subtopologies
        for topic in subtopology.repartition_source_topics
        if topic.partitions
    }
    readers: dict[str, list[int]] = {}
    due: list[tuple[int, int]] = []  # (pass, index of the subtopology)
    waiting = set(range(len(subtopologies)))
    for at, subtopology in enumerate(subtopologies):
        if subtopology.source_topics or any(
            topic.name in counts for topic in subtopology.repartition_source_topics
        ):
            due.append((0, at))
            waiting.discard(at)
        for topic in subtopology.repartition_source_topics:
            readers.setdefault(topic.name, []).append(at)
    while due:
        turn, at = heapq.heappop(due)
        subtopology = subtopologies[at]
        known = [
            counts[topic.name] for topic in subtopology.repartition_source_topics if topic.name in counts
        ]
        known += [count for count in map(partition_count_of, subtopology.source_topics) if count is not None]
        most = max(known)
        for sink in subtopology.repartition_sink_topics:
            if sink in counts:
                continue
            counts[sink] = most
            for reader in readers.get(sink, ()):
                if reader in waiting:
                    waiting.discard(reader)
                    heapq.heappush(due, (turn if reader > at else turn + 1, reader))
    if any(
        sink not in counts for subtopology in subtopologies for sink in subtopology.repartition_sink_topics
    ):
        _refuse(
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved."
        )
    if any(name not in counts for name in readers):
        _refuse(
            "Failed to compute number of partitions for all repartition topics, "
            "because a repartition source topic is never used as a sink topic."
        )
    return counts


def _copartitioned_counts(
    source: set[str], repartition: set[str], fixed: set[str], known_count: Callable[[str], int]
) -> dict[str, int]:
    """Returns the number of partitions of each repartition topic of a copartition group.

    This is Kafka's `CopartitionedTopicsEnforcer`, except that Kafka 4.3 compares all repartition topics of
    the topology whose number the client demands, instead of those of the group. It thereby refuses
    topologies that run with the classic protocol.
    """
    if not repartition:
        _same_count({name: known_count(name) for name in source})
        return {}
    before = {name: known_count(name) for name in repartition}
    if source:
        count = _same_count({name: known_count(name) for name in source})
    elif repartition & fixed:
        if len({before[name] for name in repartition & fixed}) > 1:
            _refuse_different_counts(before)
        count = before[min(repartition & fixed)]
    else:
        count = max(before.values())
    for name in sorted(repartition & fixed):
        if before[name] != count:
            raise _TopologyProblemError(
                StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{before[name]}] of repartition topic [{name}] "
                f"doesn't match number of partitions [{count}] of the source topic.",
            )
    return dict.fromkeys(repartition, count)


def _same_count(counts: Mapping[str, int]) -> int:
    if len(set(counts.values())) > 1:
        _refuse_different_counts(counts)
    return next(iter(counts.values()), 0)


def _refuse_different_counts(counts: Mapping[str, int]) -> NoReturn:
    told = ", ".join(f"{name}={counts[name]}" for name in sorted(counts))
    raise _TopologyProblemError(
        StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
        f"Following topics do not have the same number of partitions: [{{{told}}}]",
    )


def _configure_subtopology(
    subtopology: Subtopology, decided: Mapping[str, int], partition_count_of: PartitionCountOf
) -> ConfiguredSubtopology:
    def known_count(name: str) -> int:
        existing = partition_count_of(name)
        return decided[name] if existing is None else existing

    def internal_topics(topics: Iterable[TopicInfo]) -> Mapping[str, InternalTopic]:
        return {
            topic.name: InternalTopic(
                topic.name,
                topic.partitions or decided[topic.name],
                topic.replication_factor or DEFAULT_REPLICATION_FACTOR,
                topic.configs,
            )
            for topic in topics
        }

    return ConfiguredSubtopology(
        max(map(known_count, subtopology.read_topics())),
        subtopology.source_topics,
        subtopology.repartition_sink_topics,
        internal_topics(subtopology.repartition_source_topics),
        internal_topics(subtopology.state_changelog_topics),
    )


def _missing_internal_topics(
    subtopologies: Mapping[str, ConfiguredSubtopology], partition_count_of: PartitionCountOf
) -> dict[str, InternalTopic]:
    internal = {
        name: topic
        for subtopology in subtopologies.values()
        for topics in (subtopology.repartition_source_topics, subtopology.state_changelog_topics)
        for name, topic in topics.items()
    }
    missing: dict[str, InternalTopic] = {}
    for name in sorted(internal):
        existing, expected = partition_count_of(name), internal[name].partitions
        if existing is None:
            missing[name] = internal[name]
        elif existing != expected:
            raise _TopologyProblemError(
                StreamsStatus.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: "
                f"expected {expected}, found {existing}",
            )
    return missing
