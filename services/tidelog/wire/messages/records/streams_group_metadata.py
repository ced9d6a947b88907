"""StreamsGroupMetadataKey and StreamsGroupMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class StreamsGroupMetadataKey:
    group_id: str = ""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
    )


@dataclass(slots=True)
class LastAssignmentConfig:
    key: str = ""
    value: str = ""

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0+"),
        F("value", "string", "0+"),
    )


@dataclass(slots=True)
class StreamsGroupMetadataValue:
    epoch: int = 0
    metadata_hash: int = 0
    validated_topology_epoch: int = -1
    last_assignment_configs: list[LastAssignmentConfig] | None = field(default_factory=list)

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("epoch", "int32", "0+"),
        F("metadata_hash", "int64", "0+"),
        F("validated_topology_epoch", "int32", "0+", tagged="0+", tag=0),
        F("last_assignment_configs", (LastAssignmentConfig,), "0+", nullable="0+", tagged="0+", tag=1),
    )
