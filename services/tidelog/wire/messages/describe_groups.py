"""DescribeGroupsRequest and DescribeGroupsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class DescribeGroupsRequest:
    groups: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[Fields] = (
        F("groups", ("string",), "0+"),
        F("include_authorized_operations", "bool", "3+"),
    )


@dataclass(slots=True)
class DescribedGroupMember:
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: Buffer = b""
    member_assignment: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "0+"),
        F("group_instance_id", "string", "4+", nullable="4+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("member_metadata", "bytes", "0+"),
        F("member_assignment", "bytes", "0+"),
    )


@dataclass(slots=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "6+", nullable="6+"),
        F("group_id", "string", "0+"),
        F("group_state", "string", "0+"),
        F("protocol_type", "string", "0+"),
        F("protocol_data", "string", "0+"),
        F("members", (DescribedGroupMember,), "0+"),
        F("authorized_operations", "int32", "3+"),
    )


@dataclass(slots=True)
class DescribeGroupsResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 15
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 5
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("groups", (DescribedGroup,), "0+"),
    )
