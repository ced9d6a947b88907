"""RemoveRaftVoterRequest and RemoveRaftVoterResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class RemoveRaftVoterRequest:
    cluster_id: str | None = ""
    voter_id: int = 0
    voter_directory_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 81
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("cluster_id", "string", "0+", nullable="0+"),
        F("voter_id", "int32", "0+"),
        F("voter_directory_id", "uuid", "0+"),
    )


@dataclass(slots=True)
class RemoveRaftVoterResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""

    API_KEY: ClassVar[int] = 81
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )
