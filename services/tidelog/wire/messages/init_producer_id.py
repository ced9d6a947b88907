"""InitProducerIdRequest and InitProducerIdResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class InitProducerIdRequest:
    transactional_id: str | None = ""
    transaction_timeout_ms: int = 0
    producer_id: int = -1
    producer_epoch: int = -1

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "0+", nullable="0+"),
        F("transaction_timeout_ms", "int32", "0+"),
        F("producer_id", "int64", "3+"),
        F("producer_epoch", "int16", "3+"),
    )


@dataclass(slots=True)
class InitProducerIdResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = 0

    API_KEY: ClassVar[int] = 22
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int16", "0+"),
    )
