"""OffsetForLeaderEpochRequest and OffsetForLeaderEpochResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class OffsetForLeaderPartition:
    partition: int = 0
    current_leader_epoch: int = -1
    leader_epoch: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
        F("current_leader_epoch", "int32", "2+"),
        F("leader_epoch", "int32", "0+"),
    )


@dataclass(slots=True)
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", (OffsetForLeaderPartition,), "0+"),
    )


@dataclass(slots=True)
class OffsetForLeaderEpochRequest:
    replica_id: int = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("replica_id", "int32", "3+"),
        F("topics", (OffsetForLeaderTopic,), "0+"),
    )


@dataclass(slots=True)
class EpochEndOffset:
    error_code: int = 0
    partition: int = 0
    leader_epoch: int = -1
    end_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("partition", "int32", "0+"),
        F("leader_epoch", "int32", "1+"),
        F("end_offset", "int64", "0+"),
    )


@dataclass(slots=True)
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", (EpochEndOffset,), "0+"),
    )


@dataclass(slots=True)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "2+"),
        F("topics", (OffsetForLeaderTopicResult,), "0+"),
    )
