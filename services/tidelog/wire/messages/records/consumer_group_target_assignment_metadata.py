"""ConsumerGroupTargetAssignmentMetadataKey and ConsumerGroupTargetAssignmentMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = ""

    API_KEY: ClassVar[int] = 6
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
    )


@dataclass(slots=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = 0
    assignment_timestamp: int = 0

    API_KEY: ClassVar[int] = 6
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("assignment_epoch", "int32", "0+"),
        F("assignment_timestamp", "int64", "0+", tagged="0+", tag=0),
    )
