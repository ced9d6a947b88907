"""AlterPartitionReassignmentsRequest and AlterPartitionReassignmentsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ReassignablePartition:
    partition_index: int = 0
    replicas: list[int] | None = None

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("replicas", ("int32",), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ReassignableTopic:
    name: str = ""
    partitions: list[ReassignablePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (ReassignablePartition,), "0+"),
    )


@dataclass(slots=True)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = 60000
    allow_replication_factor_change: bool = True
    topics: list[ReassignableTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 45
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("timeout_ms", "int32", "0+"),
        F("allow_replication_factor_change", "bool", "1+"),
        F("topics", (ReassignableTopic,), "0+"),
    )


@dataclass(slots=True)
class ReassignablePartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ReassignableTopicResponse:
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (ReassignablePartitionResponse,), "0+"),
    )


@dataclass(slots=True)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = 0
    allow_replication_factor_change: bool = True
    error_code: int = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = field(default_factory=list)

    API_KEY: ClassVar[int] = 45
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("allow_replication_factor_change", "bool", "1+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("responses", (ReassignableTopicResponse,), "0+"),
    )
