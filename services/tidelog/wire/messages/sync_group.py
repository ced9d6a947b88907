"""SyncGroupRequest and SyncGroupResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class SyncGroupRequestAssignment:
    member_id: str = ""
    assignment: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "0+"),
        F("assignment", "bytes", "0+"),
    )


@dataclass(slots=True)
class SyncGroupRequest:
    group_id: str = ""
    generation_id: int = 0
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("generation_id", "int32", "0+"),
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "3+", nullable="3+"),
        F("protocol_type", "string", "5+", nullable="5+"),
        F("protocol_name", "string", "5+", nullable="5+"),
        F("assignments", (SyncGroupRequestAssignment,), "0+"),
    )


@dataclass(slots=True)
class SyncGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: Buffer = b""

    API_KEY: ClassVar[int] = 14
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("protocol_type", "string", "5+", nullable="5+"),
        F("protocol_name", "string", "5+", nullable="5+"),
        F("assignment", "bytes", "0+"),
    )
