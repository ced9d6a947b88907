"""LegacyOffsetCommitKey and LegacyOffsetCommitValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class LegacyOffsetCommitKey:
    group: str = ""
    topic: str = ""
    partition: int = 0

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group", "string", "0"),
        F("topic", "string", "0"),
        F("partition", "int32", "0"),
    )


@dataclass(slots=True)
class LegacyOffsetCommitValue:
    offset: int = 0
    metadata: str = ""
    commit_timestamp: int = 0

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("offset", "int64", "0"),
        F("metadata", "string", "0"),
        F("commit_timestamp", "int64", "0"),
    )
