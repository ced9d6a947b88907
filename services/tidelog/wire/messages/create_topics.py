"""CreateTopicsRequest and CreateTopicsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class CreatableReplicaAssignment:
    partition_index: int = 0
    broker_ids: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("broker_ids", ("int32",), "0+"),
    )


@dataclass(slots=True)
class CreatableTopicConfig:
    name: str = ""
    value: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("value", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class CreatableTopic:
    name: str = ""
    num_partitions: int = 0
    replication_factor: int = 0
    assignments: list[CreatableReplicaAssignment] = field(default_factory=list)
    configs: list[CreatableTopicConfig] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("num_partitions", "int32", "0+"),
        F("replication_factor", "int16", "0+"),
        F("assignments", (CreatableReplicaAssignment,), "0+"),
        F("configs", (CreatableTopicConfig,), "0+"),
    )


@dataclass(slots=True)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = field(default_factory=list)
    timeout_ms: int = 60000
    validate_only: bool = False

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[Fields] = (
        F("topics", (CreatableTopic,), "0+"),
        F("timeout_ms", "int32", "0+"),
        F("validate_only", "bool", "1+"),
    )


@dataclass(slots=True)
class CreatableTopicConfigs:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "5+"),
        F("value", "string", "5+", nullable="5+"),
        F("read_only", "bool", "5+"),
        F("config_source", "int8", "5+"),
        F("is_sensitive", "bool", "5+"),
    )


@dataclass(slots=True)
class CreatableTopicResult:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = ""
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: list[CreatableTopicConfigs] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("topic_id", "uuid", "7+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "1+", nullable="0+"),
        F("topic_config_error_code", "int16", "5+", tagged="5+", tag=0),
        F("num_partitions", "int32", "5+"),
        F("replication_factor", "int16", "5+"),
        F("configs", (CreatableTopicConfigs,), "5+", nullable="5+"),
    )


@dataclass(slots=True)
class CreateTopicsResponse:
    throttle_time_ms: int = 0
    topics: list[CreatableTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "2+"),
        F("topics", (CreatableTopicResult,), "0+"),
    )
