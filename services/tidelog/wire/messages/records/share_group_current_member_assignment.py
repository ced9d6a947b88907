"""ShareGroupCurrentMemberAssignmentKey and ShareGroupCurrentMemberAssignmentValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import NOT_FLEXIBLE, ZERO_UUID, F, Fields


@dataclass(slots=True)
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: int = 0
    assigned_partitions: list[TopicPartitions] = field(default_factory=list)

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("member_epoch", "int32", "0+"),
        F("previous_member_epoch", "int32", "0+"),
        F("state", "int8", "0+"),
        F("assigned_partitions", (TopicPartitions,), "0+"),
    )
