"""PushTelemetryRequest and PushTelemetryResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, Buffer, F, Fields


@dataclass(slots=True)
class PushTelemetryRequest:
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    terminating: bool = False
    compression_type: int = 0
    metrics: Buffer = b""

    API_KEY: ClassVar[int] = 72
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("client_instance_id", "uuid", "0+"),
        F("subscription_id", "int32", "0+"),
        F("terminating", "bool", "0+"),
        F("compression_type", "int8", "0+"),
        F("metrics", "bytes", "0+"),
    )


@dataclass(slots=True)
class PushTelemetryResponse:
    throttle_time_ms: int = 0
    error_code: int = 0

    API_KEY: ClassVar[int] = 72
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )
