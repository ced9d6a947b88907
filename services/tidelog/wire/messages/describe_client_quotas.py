"""DescribeClientQuotasRequest and DescribeClientQuotasResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ComponentData:
    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("entity_type", "string", "0+"),
        F("match_type", "int8", "0+"),
        F("match", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = field(default_factory=list)
    strict: bool = False

    API_KEY: ClassVar[int] = 48
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("components", (ComponentData,), "0+"),
        F("strict", "bool", "0+"),
    )


@dataclass(slots=True)
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("entity_type", "string", "0+"),
        F("entity_name", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ValueData:
    key: str = ""
    value: float = 0.0

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0+"),
        F("value", "float64", "0+"),
    )


@dataclass(slots=True)
class EntryData:
    entity: list[EntityData] = field(default_factory=list)
    values: list[ValueData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("entity", (EntityData,), "0+"),
        F("values", (ValueData,), "0+"),
    )


@dataclass(slots=True)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = field(default_factory=list)

    API_KEY: ClassVar[int] = 48
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("entries", (EntryData,), "0+", nullable="0+"),
    )
