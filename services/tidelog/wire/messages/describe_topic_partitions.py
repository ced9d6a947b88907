"""DescribeTopicPartitionsRequest and DescribeTopicPartitionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class TopicRequest:
    name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
    )


@dataclass(slots=True)
class Cursor:
    topic_name: str = ""
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partition_index", "int32", "0+"),
    )


@dataclass(slots=True)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: int = 2000
    cursor: Cursor | None = None

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topics", (TopicRequest,), "0+"),
        F("response_partition_limit", "int32", "0+"),
        F("cursor", Cursor, "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    eligible_leader_replicas: list[int] | None = None
    last_known_elr: list[int] | None = None
    offline_replicas: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("partition_index", "int32", "0+"),
        F("leader_id", "int32", "0+"),
        F("leader_epoch", "int32", "0+"),
        F("replica_nodes", ("int32",), "0+"),
        F("isr_nodes", ("int32",), "0+"),
        F("eligible_leader_replicas", ("int32",), "0+", nullable="0+"),
        F("last_known_elr", ("int32",), "0+", nullable="0+"),
        F("offline_replicas", ("int32",), "0+"),
    )


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("name", "string", "0+", nullable="0+"),
        F("topic_id", "uuid", "0+"),
        F("is_internal", "bool", "0+"),
        F("partitions", (DescribeTopicPartitionsResponsePartition,), "0+"),
        F("topic_authorized_operations", "int32", "0+"),
    )


@dataclass(slots=True)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("topics", (DescribeTopicPartitionsResponseTopic,), "0+"),
        F("next_cursor", Cursor, "0+", nullable="0+"),
    )
