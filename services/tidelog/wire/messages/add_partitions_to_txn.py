"""AddPartitionsToTxnRequest and AddPartitionsToTxnResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class AddPartitionsToTxnTopic:
    name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = ""
    producer_id: int = 0
    producer_epoch: int = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "4+"),
        F("producer_id", "int64", "4+"),
        F("producer_epoch", "int16", "4+"),
        F("verify_only", "bool", "4+"),
        F("topics", (AddPartitionsToTxnTopic,), "4+"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = field(default_factory=list)
    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 24
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("transactions", (AddPartitionsToTxnTransaction,), "4+"),
        F("v3_and_below_transactional_id", "string", "0-3"),
        F("v3_and_below_producer_id", "int64", "0-3"),
        F("v3_and_below_producer_epoch", "int16", "0-3"),
        F("v3_and_below_topics", (AddPartitionsToTxnTopic,), "0-3"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int = 0
    partition_error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("partition_error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnTopicResult:
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("results_by_partition", (AddPartitionsToTxnPartitionResult,), "0+"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnResult:
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "4+"),
        F("topic_results", (AddPartitionsToTxnTopicResult,), "4+"),
    )


@dataclass(slots=True)
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    results_by_transaction: list[AddPartitionsToTxnResult] = field(default_factory=list)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 24
    VERSIONS: ClassVar[tuple[int, int]] = (0, 5)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "4+"),
        F("results_by_transaction", (AddPartitionsToTxnResult,), "4+"),
        F("results_by_topic_v3_and_below", (AddPartitionsToTxnTopicResult,), "0-3"),
    )
