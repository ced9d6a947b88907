"""DescribeAclsRequest and DescribeAclsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DescribeAclsRequest:
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0

    API_KEY: ClassVar[int] = 29
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("resource_type_filter", "int8", "0+"),
        F("resource_name_filter", "string", "0+", nullable="0+"),
        F("pattern_type_filter", "int8", "1+"),
        F("principal_filter", "string", "0+", nullable="0+"),
        F("host_filter", "string", "0+", nullable="0+"),
        F("operation", "int8", "0+"),
        F("permission_type", "int8", "0+"),
    )


@dataclass(slots=True)
class AclDescription:
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        F("principal", "string", "0+"),
        F("host", "string", "0+"),
        F("operation", "int8", "0+"),
        F("permission_type", "int8", "0+"),
    )


@dataclass(slots=True)
class DescribeAclsResource:
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    acls: list[AclDescription] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("pattern_type", "int8", "1+"),
        F("acls", (AclDescription,), "0+"),
    )


@dataclass(slots=True)
class DescribeAclsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = field(default_factory=list)

    API_KEY: ClassVar[int] = 29
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("resources", (DescribeAclsResource,), "0+"),
    )
