"""SaslAuthenticateRequest and SaslAuthenticateResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class SaslAuthenticateRequest:
    auth_bytes: Buffer = b""

    API_KEY: ClassVar[int] = 36
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("auth_bytes", "bytes", "0+"),
    )


@dataclass(slots=True)
class SaslAuthenticateResponse:
    error_code: int = 0
    error_message: str | None = ""
    auth_bytes: Buffer = b""
    session_lifetime_ms: int = 0

    API_KEY: ClassVar[int] = 36
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("auth_bytes", "bytes", "0+"),
        F("session_lifetime_ms", "int64", "1+"),
    )
