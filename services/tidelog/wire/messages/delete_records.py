"""DeleteRecordsRequest and DeleteRecordsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DeleteRecordsPartition:
    partition_index: int = 0
    offset: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("offset", "int64", "0+"),
    )


@dataclass(slots=True)
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (DeleteRecordsPartition,), "0+"),
    )


@dataclass(slots=True)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: int = 0

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("topics", (DeleteRecordsTopic,), "0+"),
        F("timeout_ms", "int32", "0+"),
    )


@dataclass(slots=True)
class DeleteRecordsPartitionResult:
    partition_index: int = 0
    low_watermark: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("low_watermark", "int64", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (DeleteRecordsPartitionResult,), "0+"),
    )


@dataclass(slots=True)
class DeleteRecordsResponse:
    throttle_time_ms: int = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("topics", (DeleteRecordsTopicResult,), "0+"),
    )
