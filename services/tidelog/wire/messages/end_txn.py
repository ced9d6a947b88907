"""EndTxnRequest and EndTxnResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class EndTxnRequest:
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    committed: bool = False

    API_KEY: ClassVar[int] = 26
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "0+"),
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int16", "0+"),
        F("committed", "bool", "0+"),
    )


@dataclass(slots=True)
class EndTxnResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int = -1

    API_KEY: ClassVar[int] = 26
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("producer_id", "int64", "5+"),
        F("producer_epoch", "int16", "5+"),
    )
