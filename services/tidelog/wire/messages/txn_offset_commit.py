"""TxnOffsetCommitRequest and TxnOffsetCommitResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class TxnOffsetCommitRequestPartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("committed_offset", "int64", "0+"),
        F("committed_leader_epoch", "int32", "2+"),
        F("committed_metadata", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class TxnOffsetCommitRequestTopic:
    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (TxnOffsetCommitRequestPartition,), "0+"),
    )


@dataclass(slots=True)
class TxnOffsetCommitRequest:
    transactional_id: str = ""
    group_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 28
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "0+"),
        F("group_id", "string", "0+"),
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int16", "0+"),
        F("generation_id", "int32", "3+"),
        F("member_id", "string", "3+"),
        F("group_instance_id", "string", "3+", nullable="3+"),
        F("topics", (TxnOffsetCommitRequestTopic,), "0+"),
    )


@dataclass(slots=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class TxnOffsetCommitResponseTopic:
    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (TxnOffsetCommitResponsePartition,), "0+"),
    )


@dataclass(slots=True)
class TxnOffsetCommitResponse:
    throttle_time_ms: int = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 28
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("topics", (TxnOffsetCommitResponseTopic,), "0+"),
    )
