"""ShareGroupTargetAssignmentMemberKey and ShareGroupTargetAssignmentMemberValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import NOT_FLEXIBLE, ZERO_UUID, F, Fields


@dataclass(slots=True)
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class TopicPartition:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition] = field(default_factory=list)

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topic_partitions", (TopicPartition,), "0+"),
    )
