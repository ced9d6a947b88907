"""OffsetDeleteRequest and OffsetDeleteResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class OffsetDeleteRequestPartition:
    partition_index: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
    )


@dataclass(slots=True)
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (OffsetDeleteRequestPartition,), "0+"),
    )


@dataclass(slots=True)
class OffsetDeleteRequest:
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (OffsetDeleteRequestTopic,), "0+"),
    )


@dataclass(slots=True)
class OffsetDeleteResponsePartition:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class OffsetDeleteResponseTopic:
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (OffsetDeleteResponsePartition,), "0+"),
    )


@dataclass(slots=True)
class OffsetDeleteResponse:
    error_code: int = 0
    throttle_time_ms: int = 0
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("throttle_time_ms", "int32", "0+"),
        F("topics", (OffsetDeleteResponseTopic,), "0+"),
    )
