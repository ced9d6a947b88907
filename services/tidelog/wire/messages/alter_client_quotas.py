"""AlterClientQuotasRequest and AlterClientQuotasResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("entity_type", "string", "0+"),
        F("entity_name", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class OpData:
    key: str = ""
    value: float = 0.0
    remove: bool = False

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0+"),
        F("value", "float64", "0+"),
        F("remove", "bool", "0+"),
    )


@dataclass(slots=True)
class RequestEntryData:
    entity: list[EntityData] = field(default_factory=list)
    ops: list[OpData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("entity", (EntityData,), "0+"),
        F("ops", (OpData,), "0+"),
    )


@dataclass(slots=True)
class AlterClientQuotasRequest:
    entries: list[RequestEntryData] = field(default_factory=list)
    validate_only: bool = False

    API_KEY: ClassVar[int] = 49
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("entries", (RequestEntryData,), "0+"),
        F("validate_only", "bool", "0+"),
    )


@dataclass(slots=True)
class ResponseEntryData:
    error_code: int = 0
    error_message: str | None = ""
    entity: list[EntityData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("entity", (EntityData,), "0+"),
    )


@dataclass(slots=True)
class AlterClientQuotasResponse:
    throttle_time_ms: int = 0
    entries: list[ResponseEntryData] = field(default_factory=list)

    API_KEY: ClassVar[int] = 49
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("entries", (ResponseEntryData,), "0+"),
    )
