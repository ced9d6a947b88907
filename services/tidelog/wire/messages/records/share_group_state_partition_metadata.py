"""ShareGroupStatePartitionMetadataKey and ShareGroupStatePartitionMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import NOT_FLEXIBLE, ZERO_UUID, F, Fields


@dataclass(slots=True)
class ShareGroupStatePartitionMetadataKey:
    group_id: str = ""

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
    )


@dataclass(slots=True)
class TopicPartitionsInfo:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("topic_name", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class TopicInfo:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("topic_name", "string", "0+"),
    )


@dataclass(slots=True)
class ShareGroupStatePartitionMetadataValue:
    initializing_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    initialized_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    deleting_topics: list[TopicInfo] = field(default_factory=list)

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("initializing_topics", (TopicPartitionsInfo,), "0+"),
        F("initialized_topics", (TopicPartitionsInfo,), "0+"),
        F("deleting_topics", (TopicInfo,), "0+"),
    )
