"""DescribeLogDirsRequest and DescribeLogDirsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("topics", (DescribableLogDirTopic,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeLogDirsPartition:
    partition_index: int = 0
    partition_size: int = 0
    offset_lag: int = 0
    is_future_key: bool = False

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("partition_size", "int64", "0+"),
        F("offset_lag", "int64", "0+"),
        F("is_future_key", "bool", "0+"),
    )


@dataclass(slots=True)
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (DescribeLogDirsPartition,), "0+"),
    )


@dataclass(slots=True)
class DescribeLogDirsResult:
    error_code: int = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("log_dir", "string", "0+"),
        F("topics", (DescribeLogDirsTopic,), "0+"),
        F("total_bytes", "int64", "4+"),
        F("usable_bytes", "int64", "4+"),
        F("is_cordoned", "bool", "5+"),
    )


@dataclass(slots=True)
class DescribeLogDirsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "3+"),
        F("results", (DescribeLogDirsResult,), "0+"),
    )
