"""TransactionLogKey and TransactionLogValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class TransactionLogKey:
    transactional_id: str = ""

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "0"),
    )


@dataclass(slots=True)
class PartitionsSchema:
    topic: str = ""
    partition_ids: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partition_ids", ("int32",), "0+"),
    )


@dataclass(slots=True)
class TransactionLogValue:
    producer_id: int = 0
    previous_producer_id: int = -1
    next_producer_id: int = -1
    producer_epoch: int = 0
    next_producer_epoch: int = -1
    transaction_timeout_ms: int = 0
    transaction_status: int = 0
    transaction_partitions: list[PartitionsSchema] | None = field(default_factory=list)
    transaction_last_update_timestamp_ms: int = 0
    transaction_start_timestamp_ms: int = 0
    client_transaction_version: int = 0

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("producer_id", "int64", "0+"),
        F("previous_producer_id", "int64", "1+", tagged="1+", tag=0),
        F("next_producer_id", "int64", "1+", tagged="1+", tag=1),
        F("producer_epoch", "int16", "0+"),
        F("next_producer_epoch", "int16", "1+", tagged="1+", tag=3),
        F("transaction_timeout_ms", "int32", "0+"),
        F("transaction_status", "int8", "0+"),
        F("transaction_partitions", (PartitionsSchema,), "0+", nullable="0+"),
        F("transaction_last_update_timestamp_ms", "int64", "0+"),
        F("transaction_start_timestamp_ms", "int64", "0+"),
        F("client_transaction_version", "int16", "1+", tagged="1+", tag=2),
    )
