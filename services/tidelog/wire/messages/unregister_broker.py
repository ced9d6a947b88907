"""UnregisterBrokerRequest and UnregisterBrokerResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class UnregisterBrokerRequest:
    broker_id: int = 0

    API_KEY: ClassVar[int] = 64
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("broker_id", "int32", "0+"),
    )


@dataclass(slots=True)
class UnregisterBrokerResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""

    API_KEY: ClassVar[int] = 64
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )
