"""WriteShareGroupStateRequest and WriteShareGroupStateResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class StateBatch:
    first_offset: int = 0
    last_offset: int = 0
    delivery_state: int = 0
    delivery_count: int = 0

    FIELDS: ClassVar[Fields] = (
        F("first_offset", "int64", "0+"),
        F("last_offset", "int64", "0+"),
        F("delivery_state", "int8", "0+"),
        F("delivery_count", "int16", "0+"),
    )


@dataclass(slots=True)
class PartitionData:
    partition: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = 0
    delivery_complete_count: int = -1
    state_batches: list[StateBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
        F("state_epoch", "int32", "0+"),
        F("leader_epoch", "int32", "0+"),
        F("start_offset", "int64", "0+"),
        F("delivery_complete_count", "int32", "1+"),
        F("state_batches", (StateBatch,), "0+"),
    )


@dataclass(slots=True)
class WriteStateData:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (PartitionData,), "0+"),
    )


@dataclass(slots=True)
class WriteShareGroupStateRequest:
    group_id: str = ""
    topics: list[WriteStateData] = field(default_factory=list)

    API_KEY: ClassVar[int] = 85
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (WriteStateData,), "0+"),
    )


@dataclass(slots=True)
class PartitionResult:
    partition: int = 0
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class WriteStateResult:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (PartitionResult,), "0+"),
    )


@dataclass(slots=True)
class WriteShareGroupStateResponse:
    results: list[WriteStateResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 85
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("results", (WriteStateResult,), "0+"),
    )
