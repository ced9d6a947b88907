"""ListTransactionsRequest and ListTransactionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ListTransactionsRequest:
    state_filters: list[str] = field(default_factory=list)
    producer_id_filters: list[int] = field(default_factory=list)
    duration_filter: int = -1
    transactional_id_pattern: str | None = None

    API_KEY: ClassVar[int] = 66
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("state_filters", ("string",), "0+"),
        F("producer_id_filters", ("int64",), "0+"),
        F("duration_filter", "int64", "1+"),
        F("transactional_id_pattern", "string", "2+", nullable="2+"),
    )


@dataclass(slots=True)
class TransactionState:
    transactional_id: str = ""
    producer_id: int = 0
    transaction_state: str = ""

    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "0+"),
        F("producer_id", "int64", "0+"),
        F("transaction_state", "string", "0+"),
    )


@dataclass(slots=True)
class ListTransactionsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    unknown_state_filters: list[str] = field(default_factory=list)
    transaction_states: list[TransactionState] = field(default_factory=list)

    API_KEY: ClassVar[int] = 66
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("unknown_state_filters", ("string",), "0+"),
        F("transaction_states", (TransactionState,), "0+"),
    )
