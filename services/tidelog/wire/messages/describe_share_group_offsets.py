"""DescribeShareGroupOffsetsRequest and DescribeShareGroupOffsetsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (DescribeShareGroupOffsetsRequestTopic,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 90
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("groups", (DescribeShareGroupOffsetsRequestGroup,), "0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = 0
    start_offset: int = 0
    leader_epoch: int = 0
    lag: int = -1
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("start_offset", "int64", "0+"),
        F("leader_epoch", "int32", "0+"),
        F("lag", "int64", "1+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("topic_id", "uuid", "0+"),
        F("partitions", (DescribeShareGroupOffsetsResponsePartition,), "0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(default_factory=list)
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (DescribeShareGroupOffsetsResponseTopic,), "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 90
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("groups", (DescribeShareGroupOffsetsResponseGroup,), "0+"),
    )
