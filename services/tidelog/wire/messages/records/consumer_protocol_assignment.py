"""ConsumerProtocolAssignment.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, Buffer, F, Fields


@dataclass(slots=True)
class TopicPartition:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ConsumerProtocolAssignment:
    assigned_partitions: list[TopicPartition] = field(default_factory=list)
    user_data: Buffer | None = None

    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("assigned_partitions", (TopicPartition,), "0+"),
        F("user_data", "bytes", "0+", nullable="0+"),
    )
