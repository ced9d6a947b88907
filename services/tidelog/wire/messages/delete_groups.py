"""DeleteGroupsRequest and DeleteGroupsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DeleteGroupsRequest:
    groups_names: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("groups_names", ("string",), "0+"),
    )


@dataclass(slots=True)
class DeletableGroupResult:
    group_id: str = ""
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class DeleteGroupsResponse:
    throttle_time_ms: int = 0
    results: list[DeletableGroupResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 42
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (DeletableGroupResult,), "0+"),
    )
