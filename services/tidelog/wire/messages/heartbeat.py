"""HeartbeatRequest and HeartbeatResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class HeartbeatRequest:
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("generation_id", "int32", "0+"),
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "3+", nullable="3+"),
    )


@dataclass(slots=True)
class HeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0

    API_KEY: ClassVar[int] = 12
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
    )
