"""StreamsGroupDescribeRequest and StreamsGroupDescribeResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class StreamsGroupDescribeRequest:
    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    API_KEY: ClassVar[int] = 89
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_ids", ("string",), "0+"),
        F("include_authorized_operations", "bool", "0+"),
    )


@dataclass(slots=True)
class KeyValue:
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
    topic_configs: list[KeyValue] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", "int32", "0+"),
        F("replication_factor", "int16", "0+"),
        F("topic_configs", (KeyValue,), "0+"),
    )


@dataclass(slots=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = field(default_factory=list)
    repartition_sink_topics: list[str] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("source_topics", ("string",), "0+"),
        F("repartition_sink_topics", ("string",), "0+"),
        F("state_changelog_topics", (TopicInfo,), "0+"),
        F("repartition_source_topics", (TopicInfo,), "0+"),
    )


@dataclass(slots=True)
class Topology:
    epoch: int = 0
    subtopologies: list[Subtopology] | None = None

    FIELDS: ClassVar[Fields] = (
        F("epoch", "int32", "0+"),
        F("subtopologies", (Subtopology,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class Endpoint:
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        F("host", "string", "0+"),
        F("port", "uint16", "0+"),
    )


@dataclass(slots=True)
class TaskOffset:
    subtopology_id: str = ""
    partition: int = 0
    offset: int = 0

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("partition", "int32", "0+"),
        F("offset", "int64", "0+"),
    )


@dataclass(slots=True)
class TaskIds:
    subtopology_id: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("subtopology_id", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class Assignment:
    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("active_tasks", (TaskIds,), "0+"),
        F("standby_tasks", (TaskIds,), "0+"),
        F("warmup_tasks", (TaskIds,), "0+"),
    )


@dataclass(slots=True)
class Member:
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = field(default_factory=list)
    task_offsets: list[TaskOffset] = field(default_factory=list)
    task_end_offsets: list[TaskOffset] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    is_classic: bool = False

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "0+"),
        F("member_epoch", "int32", "0+"),
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("topology_epoch", "int32", "0+"),
        F("process_id", "string", "0+"),
        F("user_endpoint", Endpoint, "0+", nullable="0+"),
        F("client_tags", (KeyValue,), "0+"),
        F("task_offsets", (TaskOffset,), "0+"),
        F("task_end_offsets", (TaskOffset,), "0+"),
        F("assignment", Assignment, "0+"),
        F("target_assignment", Assignment, "0+"),
        F("is_classic", "bool", "0+"),
    )


@dataclass(slots=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    topology: Topology | None = None
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("group_id", "string", "0+"),
        F("group_state", "string", "0+"),
        F("group_epoch", "int32", "0+"),
        F("assignment_epoch", "int32", "0+"),
        F("topology", Topology, "0+", nullable="0+"),
        F("members", (Member,), "0+"),
        F("authorized_operations", "int32", "0+"),
    )


@dataclass(slots=True)
class StreamsGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 89
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("groups", (DescribedGroup,), "0+"),
    )
