"""ShareFetchRequest and ShareFetchResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields, Records


@dataclass(slots=True)
class AcknowledgementBatch:
    first_offset: int = 0
    last_offset: int = 0
    acknowledge_types: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("first_offset", "int64", "0+"),
        F("last_offset", "int64", "0+"),
        F("acknowledge_types", ("int8",), "0+"),
    )


@dataclass(slots=True)
class FetchPartition:
    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("acknowledgement_batches", (AcknowledgementBatch,), "0+"),
    )


@dataclass(slots=True)
class FetchTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (FetchPartition,), "0+"),
    )


@dataclass(slots=True)
class ForgottenTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ShareFetchRequest:
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    max_records: int = 0
    batch_size: int = 0
    share_acquire_mode: int = 0
    is_renew_ack: bool = False
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 78
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+", nullable="0+"),
        F("member_id", "string", "0+", nullable="0+"),
        F("share_session_epoch", "int32", "0+"),
        F("max_wait_ms", "int32", "0+"),
        F("min_bytes", "int32", "0+"),
        F("max_bytes", "int32", "0+"),
        F("max_records", "int32", "1+"),
        F("batch_size", "int32", "1+"),
        F("share_acquire_mode", "int8", "2+"),
        F("is_renew_ack", "bool", "2+"),
        F("topics", (FetchTopic,), "0+"),
        F("forgotten_topics_data", (ForgottenTopic,), "0+"),
    )


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: int = 0
    leader_epoch: int = 0

    FIELDS: ClassVar[Fields] = (
        F("leader_id", "int32", "0+"),
        F("leader_epoch", "int32", "0+"),
    )


@dataclass(slots=True)
class AcquiredRecords:
    first_offset: int = 0
    last_offset: int = 0
    delivery_count: int = 0

    FIELDS: ClassVar[Fields] = (
        F("first_offset", "int64", "0+"),
        F("last_offset", "int64", "0+"),
        F("delivery_count", "int16", "0+"),
    )


@dataclass(slots=True)
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    records: Records | None = None
    acquired_records: list[AcquiredRecords] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("acknowledge_error_code", "int16", "0+"),
        F("acknowledge_error_message", "string", "0+", nullable="0+"),
        F("current_leader", LeaderIdAndEpoch, "0+"),
        F("records", "records", "0+", nullable="0"),
        F("acquired_records", (AcquiredRecords,), "0+"),
    )


@dataclass(slots=True)
class ShareFetchableTopicResponse:
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (PartitionData,), "0+"),
    )


@dataclass(slots=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("node_id", "int32", "0+"),
        F("host", "string", "0+"),
        F("port", "int32", "0+"),
        F("rack", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ShareFetchResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareFetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    API_KEY: ClassVar[int] = 78
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("acquisition_lock_timeout_ms", "int32", "1+"),
        F("responses", (ShareFetchableTopicResponse,), "0+"),
        F("node_endpoints", (NodeEndpoint,), "0+"),
    )
