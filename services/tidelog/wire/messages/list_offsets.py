"""ListOffsetsRequest and ListOffsetsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ListOffsetsPartition:
    partition_index: int = 0
    current_leader_epoch: int = -1
    timestamp: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("current_leader_epoch", "int32", "4+"),
        F("timestamp", "int64", "0+"),
    )


@dataclass(slots=True)
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (ListOffsetsPartition,), "0+"),
    )


@dataclass(slots=True)
class ListOffsetsRequest:
    replica_id: int = 0
    isolation_level: int = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: int = 0

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("replica_id", "int32", "0+"),
        F("isolation_level", "int8", "2+"),
        F("topics", (ListOffsetsTopic,), "0+"),
        F("timeout_ms", "int32", "10+"),
    )


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("timestamp", "int64", "1+"),
        F("offset", "int64", "1+"),
        F("leader_epoch", "int32", "4+"),
    )


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (ListOffsetsPartitionResponse,), "0+"),
    )


@dataclass(slots=True)
class ListOffsetsResponse:
    throttle_time_ms: int = 0
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "2+"),
        F("topics", (ListOffsetsTopicResponse,), "0+"),
    )
