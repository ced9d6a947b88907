"""MetadataRequest and MetadataResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class MetadataRequestTopic:
    topic_id: UUID = ZERO_UUID
    name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "10+"),
        F("name", "string", "0+", nullable="10+"),
    )


@dataclass(slots=True)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = field(default_factory=list)
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[Fields] = (
        F("topics", (MetadataRequestTopic,), "0+", nullable="1+"),
        F("allow_auto_topic_creation", "bool", "4+"),
        F("include_cluster_authorized_operations", "bool", "8-10"),
        F("include_topic_authorized_operations", "bool", "8+"),
    )


@dataclass(slots=True)
class MetadataResponseBroker:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("node_id", "int32", "0+"),
        F("host", "string", "0+"),
        F("port", "int32", "0+"),
        F("rack", "string", "1+", nullable="1+"),
    )


@dataclass(slots=True)
class MetadataResponsePartition:
    error_code: int = 0
    partition_index: int = 0
    leader_id: int = 0
    leader_epoch: int = -1
    replica_nodes: list[int] = field(default_factory=list)
    isr_nodes: list[int] = field(default_factory=list)
    offline_replicas: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("partition_index", "int32", "0+"),
        F("leader_id", "int32", "0+"),
        F("leader_epoch", "int32", "7+"),
        F("replica_nodes", ("int32",), "0+"),
        F("isr_nodes", ("int32",), "0+"),
        F("offline_replicas", ("int32",), "5+"),
    )


@dataclass(slots=True)
class MetadataResponseTopic:
    error_code: int = 0
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    is_internal: bool = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("name", "string", "0+", nullable="12+"),
        F("topic_id", "uuid", "10+"),
        F("is_internal", "bool", "1+"),
        F("partitions", (MetadataResponsePartition,), "0+"),
        F("topic_authorized_operations", "int32", "8+"),
    )


@dataclass(slots=True)
class MetadataResponse:
    throttle_time_ms: int = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: str | None = None
    controller_id: int = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "3+"),
        F("brokers", (MetadataResponseBroker,), "0+"),
        F("cluster_id", "string", "2+", nullable="2+"),
        F("controller_id", "int32", "1+"),
        F("topics", (MetadataResponseTopic,), "0+"),
        F("cluster_authorized_operations", "int32", "8-10"),
        F("error_code", "int16", "13+"),
    )
