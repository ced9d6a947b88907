"""StreamsGroupTopologyKey and StreamsGroupTopologyValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class StreamsGroupTopologyKey:
    group_id: str = ""

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
    )


@dataclass(slots=True)
class TopicConfig:
    key: str = ""
    value: str = ""

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0+"),
        F("value", "string", "0+"),
    )


@dataclass(slots=True)
class TopicInfo:
    name: str = ""
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: list[TopicConfig] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", "int32", "0+"),
        F("replication_factor", "int16", "0+"),
        F("topic_configs", (TopicConfig,), "0+"),
    )


@dataclass(slots=True)
class CopartitionGroup:
    source_topics: list[int] = field(default_factory=list)
    source_topic_regex: list[int] = field(default_factory=list)
    repartition_source_topics: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("source_topics", ("int16",), "0+"),
        F("source_topic_regex", ("int16",), "0+"),
        F("repartition_source_topics", ("int16",), "0+"),
    )


@dataclass(slots=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    source_topic_regex: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)
    copartition_groups: list[CopartitionGroup] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("source_topics", ("string",), "0+"),
        F("source_topic_regex", ("string",), "0+"),
        F("state_changelog_topics", (TopicInfo,), "0+"),
        F("repartition_sink_topics", ("string",), "0+"),
        F("repartition_source_topics", (TopicInfo,), "0+"),
        F("copartition_groups", (CopartitionGroup,), "0+"),
    )


@dataclass(slots=True)
class StreamsGroupTopologyValue:
    epoch: int = 0
    subtopologies: list[Subtopology] = field(default_factory=list)

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("epoch", "int32", "0+"),
        F("subtopologies", (Subtopology,), "0+"),
    )
