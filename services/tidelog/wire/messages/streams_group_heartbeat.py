"""StreamsGroupHeartbeatRequest and StreamsGroupHeartbeatResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


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
class Topology:
    epoch: int = 0
    subtopologies: list[Subtopology] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("epoch", "int32", "0+"),
        F("subtopologies", (Subtopology,), "0+"),
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
class StreamsGroupHeartbeatRequest:
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    endpoint_information_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False

    API_KEY: ClassVar[int] = 88
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("member_id", "string", "0+"),
        F("member_epoch", "int32", "0+"),
        F("endpoint_information_epoch", "int32", "0+"),
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("rebalance_timeout_ms", "int32", "0+"),
        F("topology", Topology, "0+", nullable="0+"),
        F("active_tasks", (TaskIds,), "0+", nullable="0+"),
        F("standby_tasks", (TaskIds,), "0+", nullable="0+"),
        F("warmup_tasks", (TaskIds,), "0+", nullable="0+"),
        F("process_id", "string", "0+", nullable="0+"),
        F("user_endpoint", Endpoint, "0+", nullable="0+"),
        F("client_tags", (KeyValue,), "0+", nullable="0+"),
        F("task_offsets", (TaskOffset,), "0+", nullable="0+"),
        F("task_end_offsets", (TaskOffset,), "0+", nullable="0+"),
        F("shutdown_application", "bool", "0+"),
    )


@dataclass(slots=True)
class Status:
    status_code: int = 0
    status_detail: str = ""

    FIELDS: ClassVar[Fields] = (
        F("status_code", "int8", "0+"),
        F("status_detail", "string", "0+"),
    )


@dataclass(slots=True)
class TopicPartition:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class EndpointToPartitions:
    user_endpoint: Endpoint = field(default_factory=Endpoint)
    active_partitions: list[TopicPartition] = field(default_factory=list)
    standby_partitions: list[TopicPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("user_endpoint", Endpoint, "0+"),
        F("active_partitions", (TopicPartition,), "0+"),
        F("standby_partitions", (TopicPartition,), "0+"),
    )


@dataclass(slots=True)
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    status: list[Status] | None = field(default_factory=list)
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None

    API_KEY: ClassVar[int] = 88
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("member_id", "string", "0+"),
        F("member_epoch", "int32", "0+"),
        F("heartbeat_interval_ms", "int32", "0+"),
        F("acceptable_recovery_lag", "int32", "0+"),
        F("task_offset_interval_ms", "int32", "0+"),
        F("status", (Status,), "0+", nullable="0+"),
        F("active_tasks", (TaskIds,), "0+", nullable="0+"),
        F("standby_tasks", (TaskIds,), "0+", nullable="0+"),
        F("warmup_tasks", (TaskIds,), "0+", nullable="0+"),
        F("endpoint_information_epoch", "int32", "0+"),
        F("partitions_by_user_endpoint", (EndpointToPartitions,), "0+", nullable="0+"),
    )
