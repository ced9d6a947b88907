"""OffsetFetchRequest and OffsetFetchResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class OffsetFetchRequestTopic:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-7"),
        F("partition_indexes", ("int32",), "0-7"),
    )


@dataclass(slots=True)
class OffsetFetchRequestTopics:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "8-9"),
        F("topic_id", "uuid", "10+"),
        F("partition_indexes", ("int32",), "8+"),
    )


@dataclass(slots=True)
class OffsetFetchRequestGroup:
    group_id: str = ""
    member_id: str | None = None
    member_epoch: int = -1
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "8+"),
        F("member_id", "string", "9+", nullable="9+"),
        F("member_epoch", "int32", "9+"),
        F("topics", (OffsetFetchRequestTopics,), "8+", nullable="8+"),
    )


@dataclass(slots=True)
class OffsetFetchRequest:
    group_id: str = ""
    topics: list[OffsetFetchRequestTopic] | None = field(default_factory=list)
    groups: list[OffsetFetchRequestGroup] = field(default_factory=list)
    require_stable: bool = False

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0-7"),
        F("topics", (OffsetFetchRequestTopic,), "0-7", nullable="2-7"),
        F("groups", (OffsetFetchRequestGroup,), "8+"),
        F("require_stable", "bool", "7+"),
    )


@dataclass(slots=True)
class OffsetFetchResponsePartition:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0-7"),
        F("committed_offset", "int64", "0-7"),
        F("committed_leader_epoch", "int32", "5-7"),
        F("metadata", "string", "0-7", nullable="0-7"),
        F("error_code", "int16", "0-7"),
    )


@dataclass(slots=True)
class OffsetFetchResponseTopic:
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-7"),
        F("partitions", (OffsetFetchResponsePartition,), "0-7"),
    )


@dataclass(slots=True)
class OffsetFetchResponsePartitions:
    partition_index: int = 0
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "8+"),
        F("committed_offset", "int64", "8+"),
        F("committed_leader_epoch", "int32", "8+"),
        F("metadata", "string", "8+", nullable="8+"),
        F("error_code", "int16", "8+"),
    )


@dataclass(slots=True)
class OffsetFetchResponseTopics:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "8-9"),
        F("topic_id", "uuid", "10+"),
        F("partitions", (OffsetFetchResponsePartitions,), "8+"),
    )


@dataclass(slots=True)
class OffsetFetchResponseGroup:
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "8+"),
        F("topics", (OffsetFetchResponseTopics,), "8+"),
        F("error_code", "int16", "8+"),
    )


@dataclass(slots=True)
class OffsetFetchResponse:
    throttle_time_ms: int = 0
    topics: list[OffsetFetchResponseTopic] = field(default_factory=list)
    error_code: int = 0
    groups: list[OffsetFetchResponseGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "3+"),
        F("topics", (OffsetFetchResponseTopic,), "0-7"),
        F("error_code", "int16", "2-7"),
        F("groups", (OffsetFetchResponseGroup,), "8+"),
    )
