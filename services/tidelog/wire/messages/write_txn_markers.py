"""WriteTxnMarkersRequest and WriteTxnMarkersResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class WritableTxnMarkerTopic:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partition_indexes", ("int32",), "0+"),
    )


@dataclass(slots=True)
class WritableTxnMarker:
    producer_id: int = 0
    producer_epoch: int = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)
    coordinator_epoch: int = 0
    transaction_version: int = 0

    FIELDS: ClassVar[Fields] = (
        F("producer_id", "int64", "0+"),
        F("producer_epoch", "int16", "0+"),
        F("transaction_result", "bool", "0+"),
        F("topics", (WritableTxnMarkerTopic,), "0+"),
        F("coordinator_epoch", "int32", "0+"),
        F("transaction_version", "int8", "2+"),
    )


@dataclass(slots=True)
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = field(default_factory=list)

    API_KEY: ClassVar[int] = 27
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("markers", (WritableTxnMarker,), "0+"),
    )


@dataclass(slots=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class WritableTxnMarkerTopicResult:
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (WritableTxnMarkerPartitionResult,), "0+"),
    )


@dataclass(slots=True)
class WritableTxnMarkerResult:
    producer_id: int = 0
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("producer_id", "int64", "0+"),
        F("topics", (WritableTxnMarkerTopicResult,), "0+"),
    )


@dataclass(slots=True)
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 27
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("markers", (WritableTxnMarkerResult,), "0+"),
    )
