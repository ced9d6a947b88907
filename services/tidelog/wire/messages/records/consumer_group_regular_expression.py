"""ConsumerGroupRegularExpressionKey and ConsumerGroupRegularExpressionValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class ConsumerGroupRegularExpressionKey:
    group_id: str = ""
    regular_expression: str = ""

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("regular_expression", "string", "0"),
    )


@dataclass(slots=True)
class ConsumerGroupRegularExpressionValue:
    topics: list[str] = field(default_factory=list)
    version: int = 0
    timestamp: int = 0

    API_KEY: ClassVar[int] = 16
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topics", ("string",), "0+"),
        F("version", "int64", "0+"),
        F("timestamp", "int64", "0+"),
    )
