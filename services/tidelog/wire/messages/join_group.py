"""JoinGroupRequest and JoinGroupResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class JoinGroupRequestProtocol:
    name: str = ""
    metadata: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("metadata", "bytes", "0+"),
    )


@dataclass(slots=True)
class JoinGroupRequest:
    group_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: str | None = None

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("session_timeout_ms", "int32", "0+"),
        F("rebalance_timeout_ms", "int32", "1+"),
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "5+", nullable="5+"),
        F("protocol_type", "string", "0+"),
        F("protocols", (JoinGroupRequestProtocol,), "0+"),
        F("reason", "string", "8+", nullable="8+"),
    )


@dataclass(slots=True)
class JoinGroupResponseMember:
    member_id: str = ""
    group_instance_id: str | None = None
    metadata: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "5+", nullable="5+"),
        F("metadata", "bytes", "0+"),
    )


@dataclass(slots=True)
class JoinGroupResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)

    API_KEY: ClassVar[int] = 11
    VERSIONS: ClassVar[tuple[int, int]] = (0, 9)
    FLEXIBLE_FROM: ClassVar[int] = 6
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "2+"),
        F("error_code", "int16", "0+"),
        F("generation_id", "int32", "0+"),
        F("protocol_type", "string", "7+", nullable="7+"),
        F("protocol_name", "string", "0+", nullable="7+"),
        F("leader", "string", "0+"),
        F("skip_assignment", "bool", "9+"),
        F("member_id", "string", "0+"),
        F("members", (JoinGroupResponseMember,), "0+"),
    )
