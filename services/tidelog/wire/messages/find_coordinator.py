"""FindCoordinatorRequest and FindCoordinatorResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class FindCoordinatorRequest:
    key: str = ""
    key_type: int = 0
    coordinator_keys: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0-3"),
        F("key_type", "int8", "1+"),
        F("coordinator_keys", ("string",), "4+"),
    )


@dataclass(slots=True)
class Coordinator:
    key: str = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "4+"),
        F("node_id", "int32", "4+"),
        F("host", "string", "4+"),
        F("port", "int32", "4+"),
        F("error_code", "int16", "4+"),
        F("error_message", "string", "4+", nullable="4+"),
    )


@dataclass(slots=True)
class FindCoordinatorResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    node_id: int = 0
    host: str = ""
    port: int = 0
    coordinators: list[Coordinator] = field(default_factory=list)

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 6)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "0-3"),
        F("error_message", "string", "1-3", nullable="1-3"),
        F("node_id", "int32", "0-3"),
        F("host", "string", "0-3"),
        F("port", "int32", "0-3"),
        F("coordinators", (Coordinator,), "4+"),
    )
