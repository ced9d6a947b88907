"""ConsumerGroupPartitionMetadataKey and ConsumerGroupPartitionMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import NOT_FLEXIBLE, ZERO_UUID, F, Fields


@dataclass(slots=True)
class ConsumerGroupPartitionMetadataKey:
    group_id: str = ""

    API_KEY: ClassVar[int] = 4
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
    )


@dataclass(slots=True)
class PartitionMetadata:
    partition: int = 0
    racks: list[str] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
        F("racks", ("string",), "0+"),
    )


@dataclass(slots=True)
class TopicMetadata:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    num_partitions: int = 0
    partition_metadata: list[PartitionMetadata] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("topic_name", "string", "0+"),
        F("num_partitions", "int32", "0+"),
        F("partition_metadata", (PartitionMetadata,), "0+"),
    )


@dataclass(slots=True)
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = field(default_factory=list)

    API_KEY: ClassVar[int] = 4
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topics", (TopicMetadata,), "0+"),
    )
