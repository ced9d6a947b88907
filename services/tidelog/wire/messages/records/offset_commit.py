"""OffsetCommitKey and OffsetCommitValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import NOT_FLEXIBLE, ZERO_UUID, F, Fields


@dataclass(slots=True)
class OffsetCommitKey:
    group: str = ""
    topic: str = ""
    partition: int = 0

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group", "string", "0"),
        F("topic", "string", "0"),
        F("partition", "int32", "0"),
    )


@dataclass(slots=True)
class OffsetCommitValue:
    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = -1
    topic_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("offset", "int64", "0+"),
        F("leader_epoch", "int32", "3+"),
        F("metadata", "string", "0+"),
        F("commit_timestamp", "int64", "0+"),
        F("expire_timestamp", "int64", "1"),
        F("topic_id", "uuid", "4+", tagged="4+", tag=0),
    )
