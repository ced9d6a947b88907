"""GetTelemetrySubscriptionsRequest and GetTelemetrySubscriptionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class GetTelemetrySubscriptionsRequest:
    client_instance_id: UUID = ZERO_UUID

    API_KEY: ClassVar[int] = 71
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("client_instance_id", "uuid", "0+"),
    )


@dataclass(slots=True)
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    client_instance_id: UUID = ZERO_UUID
    subscription_id: int = 0
    accepted_compression_types: list[int] = field(default_factory=list)
    push_interval_ms: int = 0
    telemetry_max_bytes: int = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 71
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("client_instance_id", "uuid", "0+"),
        F("subscription_id", "int32", "0+"),
        F("accepted_compression_types", ("int8",), "0+"),
        F("push_interval_ms", "int32", "0+"),
        F("telemetry_max_bytes", "int32", "0+"),
        F("delta_temporality", "bool", "0+"),
        F("requested_metrics", ("string",), "0+"),
    )
