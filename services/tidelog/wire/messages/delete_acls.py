"""DeleteAclsRequest and DeleteAclsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DeleteAclsFilter:
    resource_type_filter: int = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: int = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: int = 0
    permission_type: int = 0

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
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = field(default_factory=list)

    API_KEY: ClassVar[int] = 31
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("filters", (DeleteAclsFilter,), "0+"),
    )


@dataclass(slots=True)
class DeleteAclsMatchingAcl:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("pattern_type", "int8", "1+"),
        F("principal", "string", "0+"),
        F("host", "string", "0+"),
        F("operation", "int8", "0+"),
        F("permission_type", "int8", "0+"),
    )


@dataclass(slots=True)
class DeleteAclsFilterResult:
    error_code: int = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("matching_acls", (DeleteAclsMatchingAcl,), "0+"),
    )


@dataclass(slots=True)
class DeleteAclsResponse:
    throttle_time_ms: int = 0
    filter_results: list[DeleteAclsFilterResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 31
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("filter_results", (DeleteAclsFilterResult,), "0+"),
    )
