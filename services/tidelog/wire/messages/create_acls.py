"""CreateAclsRequest and CreateAclsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class AclCreation:
    resource_type: int = 0
    resource_name: str = ""
    resource_pattern_type: int = 3
    principal: str = ""
    host: str = ""
    operation: int = 0
    permission_type: int = 0

    FIELDS: ClassVar[Fields] = (
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("resource_pattern_type", "int8", "1+"),
        F("principal", "string", "0+"),
        F("host", "string", "0+"),
        F("operation", "int8", "0+"),
        F("permission_type", "int8", "0+"),
    )


@dataclass(slots=True)
class CreateAclsRequest:
    creations: list[AclCreation] = field(default_factory=list)

    API_KEY: ClassVar[int] = 30
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("creations", (AclCreation,), "0+"),
    )


@dataclass(slots=True)
class AclCreationResult:
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class CreateAclsResponse:
    throttle_time_ms: int = 0
    results: list[AclCreationResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 30
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (AclCreationResult,), "0+"),
    )
