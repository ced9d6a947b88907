"""OffsetCommitRequest and OffsetCommitResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class OffsetCommitRequestPartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("committed_offset", "int64", "0+"),
        F("committed_leader_epoch", "int32", "6+"),
        F("committed_metadata", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class OffsetCommitRequestTopic:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-9"),
        F("topic_id", "uuid", "10+"),
        F("partitions", (OffsetCommitRequestPartition,), "0+"),
    )


@dataclass(slots=True)
class OffsetCommitRequest:
    group_id: str = ""
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_FROM: ClassVar[int] = 8
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("generation_id_or_member_epoch", "int32", "1+"),
        F("member_id", "string", "1+"),
        F("group_instance_id", "string", "7+", nullable="7+"),
        F("retention_time_ms", "int64", "2-4"),
        F("topics", (OffsetCommitRequestTopic,), "0+"),
    )


@dataclass(slots=True)
class OffsetCommitResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class OffsetCommitResponseTopic:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-9"),
        F("topic_id", "uuid", "10+"),
        F("partitions", (OffsetCommitResponsePartition,), "0+"),
    )


@dataclass(slots=True)
class OffsetCommitResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_FROM: ClassVar[int] = 8
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "3+"),
        F("topics", (OffsetCommitResponseTopic,), "0+"),
    )
