"""DescribeQuorumRequest and DescribeQuorumResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class RequestPartitionData:
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
    )


@dataclass(slots=True)
class RequestTopicData:
    topic_name: str = ""
    partitions: list[RequestPartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partitions", (RequestPartitionData,), "0+"),
    )


@dataclass(slots=True)
class DescribeQuorumRequest:
    topics: list[RequestTopicData] = field(default_factory=list)

    API_KEY: ClassVar[int] = 55
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topics", (RequestTopicData,), "0+"),
    )


@dataclass(slots=True)
class ReplicaState:
    replica_id: int = 0
    replica_directory_id: UUID = ZERO_UUID
    log_end_offset: int = 0
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1

    FIELDS: ClassVar[Fields] = (
        F("replica_id", "int32", "0+"),
        F("replica_directory_id", "uuid", "2+"),
        F("log_end_offset", "int64", "0+"),
        F("last_fetch_timestamp", "int64", "1+"),
        F("last_caught_up_timestamp", "int64", "1+"),
    )


@dataclass(slots=True)
class ResponsePartitionData:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""
    leader_id: int = 0
    leader_epoch: int = 0
    high_watermark: int = 0
    current_voters: list[ReplicaState] = field(default_factory=list)
    observers: list[ReplicaState] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "2+", nullable="2+"),
        F("leader_id", "int32", "0+"),
        F("leader_epoch", "int32", "0+"),
        F("high_watermark", "int64", "0+"),
        F("current_voters", (ReplicaState,), "0+"),
        F("observers", (ReplicaState,), "0+"),
    )


@dataclass(slots=True)
class ResponseTopicData:
    topic_name: str = ""
    partitions: list[ResponsePartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partitions", (ResponsePartitionData,), "0+"),
    )


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "2+"),
        F("host", "string", "2+"),
        F("port", "uint16", "2+"),
    )


@dataclass(slots=True)
class Node:
    node_id: int = 0
    listeners: list[Listener] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("node_id", "int32", "2+"),
        F("listeners", (Listener,), "2+"),
    )


@dataclass(slots=True)
class DescribeQuorumResponse:
    error_code: int = 0
    error_message: str | None = ""
    topics: list[ResponseTopicData] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    API_KEY: ClassVar[int] = 55
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "2+", nullable="2+"),
        F("topics", (ResponseTopicData,), "0+"),
        F("nodes", (Node,), "2+"),
    )
