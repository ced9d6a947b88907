"""AlterShareGroupOffsetsRequest and AlterShareGroupOffsetsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = 0
    start_offset: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("start_offset", "int64", "0+"),
    )


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partitions", (AlterShareGroupOffsetsRequestPartition,), "0+"),
    )


@dataclass(slots=True)
class AlterShareGroupOffsetsRequest:
    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 91
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (AlterShareGroupOffsetsRequestTopic,), "0+"),
    )


@dataclass(slots=True)
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("topic_id", "uuid", "0+"),
        F("partitions", (AlterShareGroupOffsetsResponsePartition,), "0+"),
    )


@dataclass(slots=True)
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 91
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("responses", (AlterShareGroupOffsetsResponseTopic,), "0+"),
    )
