"""LeaveGroupRequest and LeaveGroupResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "3+"),
        F("group_instance_id", "string", "3+", nullable="3+"),
        F("reason", "string", "5+", nullable="5+"),
    )


@dataclass(slots=True)
class LeaveGroupRequest:
    group_id: str = ""
    member_id: str = ""
    members: list[MemberIdentity] = field(default_factory=list)

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("member_id", "string", "0-2"),
        F("members", (MemberIdentity,), "3+"),
    )


@dataclass(slots=True)
class MemberResponse:
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "3+"),
        F("group_instance_id", "string", "3+", nullable="3+"),
        F("error_code", "int16", "3+"),
    )


@dataclass(slots=True)
class LeaveGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    members: list[MemberResponse] = field(default_factory=list)

    API_KEY: ClassVar[int] = 13
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("members", (MemberResponse,), "3+"),
    )
