"""DeleteShareGroupStateRequest and DeleteShareGroupStateResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class PartitionData:
    partition: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
    )


@dataclass(slots=True)
class DeleteStateData:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (PartitionData,), "0+"),
    )


@dataclass(slots=True)
class DeleteShareGroupStateRequest:
    group_id: str = ""
    topics: list[DeleteStateData] = field(default_factory=list)

    API_KEY: ClassVar[int] = 86
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (DeleteStateData,), "0+"),
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
class DeleteStateResult:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (PartitionResult,), "0+"),
    )


@dataclass(slots=True)
class DeleteShareGroupStateResponse:
    results: list[DeleteStateResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 86
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("results", (DeleteStateResult,), "0+"),
    )
