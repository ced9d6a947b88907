"""SaslHandshakeRequest and SaslHandshakeResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class SaslHandshakeRequest:
    mechanism: str = ""

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("mechanism", "string", "0+"),
    )


@dataclass(slots=True)
class SaslHandshakeResponse:
    error_code: int = 0
    mechanisms: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 17
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("mechanisms", ("string",), "0+"),
    )
