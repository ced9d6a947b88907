"""ConsumerProtocolSubscription.

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
        F("topic", "string", "1+"),
        F("partitions", ("int32",), "1+"),
    )


@dataclass(slots=True)
class ConsumerProtocolSubscription:
    topics: list[str] = field(default_factory=list)
    user_data: Buffer | None = None
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None

    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("topics", ("string",), "0+"),
        F("user_data", "bytes", "0+", nullable="0+"),
        F("owned_partitions", (TopicPartition,), "1+"),
        F("generation_id", "int32", "2+"),
        F("rack_id", "string", "3+", nullable="3+"),
    )
