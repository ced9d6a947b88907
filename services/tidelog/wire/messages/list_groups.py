"""ListGroupsRequest and ListGroupsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ListGroupsRequest:
    states_filter: list[str] = field(default_factory=list)
    types_filter: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("states_filter", ("string",), "4+"),
        F("types_filter", ("string",), "5+"),
    )


@dataclass(slots=True)
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""

    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("protocol_type", "string", "0+"),
        F("group_state", "string", "4+"),
        F("group_type", "string", "5+"),
    )


@dataclass(slots=True)
class ListGroupsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    groups: list[ListedGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0+"),
        F("groups", (ListedGroup,), "0+"),
    )
