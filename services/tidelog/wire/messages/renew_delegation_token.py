"""RenewDelegationTokenRequest and RenewDelegationTokenResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class RenewDelegationTokenRequest:
    hmac: Buffer = b""
    renew_period_ms: int = 0

    API_KEY: ClassVar[int] = 39
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("hmac", "bytes", "0+"),
        F("renew_period_ms", "int64", "0+"),
    )


@dataclass(slots=True)
class RenewDelegationTokenResponse:
    error_code: int = 0
    expiry_timestamp_ms: int = 0
    throttle_time_ms: int = 0

    API_KEY: ClassVar[int] = 39
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("expiry_timestamp_ms", "int64", "0+"),
        F("throttle_time_ms", "int32", "0+"),
    )
