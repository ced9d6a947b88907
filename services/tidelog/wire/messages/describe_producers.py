"""DescribeProducersRequest and DescribeProducersResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class TopicRequest:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partition_indexes", ("int32",), "0+"),
    )


@dataclass(slots=True)
class DescribeProducersRequest:
    topics: list[TopicRequest] = field(default_factory=list)

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("topics", (TopicRequest,), "0+"),
    )


@dataclass(slots=True)
class ProducerState:
    producer_id: int = 0
    producer_epoch: int = 0
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int = 0
    current_txn_start_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int32", "0+"),
        F("last_sequence", "int32", "0+"),
        F("last_timestamp", "int64", "0+"),
        F("coordinator_epoch", "int32", "0+"),
        F("current_txn_start_offset", "int64", "0+"),
    )


@dataclass(slots=True)
class PartitionResponse:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("active_producers", (ProducerState,), "0+"),
    )


@dataclass(slots=True)
class TopicResponse:
    name: str = ""
    partitions: list[PartitionResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (PartitionResponse,), "0+"),
    )


@dataclass(slots=True)
class DescribeProducersResponse:
    throttle_time_ms: int = 0
    topics: list[TopicResponse] = field(default_factory=list)

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("topics", (TopicResponse,), "0+"),
    )
