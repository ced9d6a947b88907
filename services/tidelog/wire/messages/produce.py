"""ProduceRequest and ProduceResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, Buffer, F, Fields


@dataclass(slots=True)
class PartitionProduceData:
    index: int = 0
    records: Buffer | None = None

    FIELDS: ClassVar[Fields] = (
        F("index", "int32", "0+"),
        F("records", "records", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class TopicProduceData:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_data: list[PartitionProduceData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-12"),
        F("topic_id", "uuid", "13+"),
        F("partition_data", (PartitionProduceData,), "0+"),
    )


@dataclass(slots=True)
class ProduceRequest:
    transactional_id: str | None = None
    acks: int = 0
    timeout_ms: int = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (3, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[Fields] = (
        F("transactional_id", "string", "3+", nullable="3+"),
        F("acks", "int16", "0+"),
        F("timeout_ms", "int32", "0+"),
        F("topic_data", (TopicProduceData,), "0+"),
    )


@dataclass(slots=True)
class BatchIndexAndErrorMessage:
    batch_index: int = 0
    batch_index_error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("batch_index", "int32", "8+"),
        F("batch_index_error_message", "string", "8+", nullable="8+"),
    )


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        F("leader_id", "int32", "10+"),
        F("leader_epoch", "int32", "10+"),
    )


@dataclass(slots=True)
class PartitionProduceResponse:
    index: int = 0
    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: list[BatchIndexAndErrorMessage] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None

    FIELDS: ClassVar[Fields] = (
        F("index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("base_offset", "int64", "0+"),
        F("log_append_time_ms", "int64", "2+"),
        F("log_start_offset", "int64", "5+"),
        F("record_errors", (BatchIndexAndErrorMessage,), "8+"),
        F("error_message", "string", "8+", nullable="8+"),
        F("current_leader", LeaderIdAndEpoch, "10+", tagged="10+", tag=0),
    )


@dataclass(slots=True)
class TopicProduceResponse:
    name: str = ""
    topic_id: UUID = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0-12"),
        F("topic_id", "uuid", "13+"),
        F("partition_responses", (PartitionProduceResponse,), "0+"),
    )


@dataclass(slots=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("node_id", "int32", "10+"),
        F("host", "string", "10+"),
        F("port", "int32", "10+"),
        F("rack", "string", "10+", nullable="10+"),
    )


@dataclass(slots=True)
class ProduceResponse:
    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (3, 13)
    FLEXIBLE_FROM: ClassVar[int] = 9
    FIELDS: ClassVar[Fields] = (
        F("responses", (TopicProduceResponse,), "0+"),
        F("throttle_time_ms", "int32", "1+"),
        F("node_endpoints", (NodeEndpoint,), "10+", tagged="10+", tag=0),
    )
