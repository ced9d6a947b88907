"""DescribeTransactionsRequest and DescribeTransactionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DescribeTransactionsRequest:
    transactional_ids: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 65
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("transactional_ids", ("string",), "0+"),
    )


@dataclass(slots=True)
class TopicData:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class TransactionState:
    error_code: int = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: list[TopicData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("transactional_id", "string", "0+"),
        F("transaction_state", "string", "0+"),
        F("transaction_timeout_ms", "int32", "0+"),
        F("transaction_start_time_ms", "int64", "0+"),
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int16", "0+"),
        F("topics", (TopicData,), "0+"),
    )


@dataclass(slots=True)
class DescribeTransactionsResponse:
    throttle_time_ms: int = 0
    transaction_states: list[TransactionState] = field(default_factory=list)

    API_KEY: ClassVar[int] = 65
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("transaction_states", (TransactionState,), "0+"),
    )
