"""FetchRequest and FetchResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields, Records


@dataclass(slots=True)
class ReplicaState:
    replica_id: int = -1
    replica_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        F("replica_id", "int32", "15+"),
        F("replica_epoch", "int64", "15+"),
    )


@dataclass(slots=True)
class FetchPartition:
    partition: int = 0
    current_leader_epoch: int = -1
    fetch_offset: int = 0
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    partition_max_bytes: int = 0
    replica_directory_id: UUID = ZERO_UUID
    high_watermark: int = 9223372036854775807

    FIELDS: ClassVar[Fields] = (
        F("partition", "int32", "0+"),
        F("current_leader_epoch", "int32", "9+"),
        F("fetch_offset", "int64", "0+"),
        F("last_fetched_epoch", "int32", "12+"),
        F("log_start_offset", "int64", "5+"),
        F("partition_max_bytes", "int32", "0+"),
        F("replica_directory_id", "uuid", "17+", tagged="17+", tag=0),
        F("high_watermark", "int64", "18+", tagged="18+", tag=1),
    )


@dataclass(slots=True)
class FetchTopic:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0-12"),
        F("topic_id", "uuid", "13+"),
        F("partitions", (FetchPartition,), "0+"),
    )


@dataclass(slots=True)
class ForgottenTopic:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "7-12"),
        F("topic_id", "uuid", "13+"),
        F("partitions", ("int32",), "7+"),
    )


@dataclass(slots=True)
class FetchRequest:
    cluster_id: str | None = None
    replica_id: int = -1
    replica_state: ReplicaState | None = None
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2147483647
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_FROM: ClassVar[int] = 12
    FIELDS: ClassVar[Fields] = (
        F("cluster_id", "string", "12+", nullable="12+", tagged="12+", tag=0),
        F("replica_id", "int32", "0-14"),
        F("replica_state", ReplicaState, "15+", tagged="15+", tag=1),
        F("max_wait_ms", "int32", "0+"),
        F("min_bytes", "int32", "0+"),
        F("max_bytes", "int32", "3+"),
        F("isolation_level", "int8", "4+"),
        F("session_id", "int32", "7+"),
        F("session_epoch", "int32", "7+"),
        F("topics", (FetchTopic,), "0+"),
        F("forgotten_topics_data", (ForgottenTopic,), "7+"),
        F("rack_id", "string", "11+"),
    )


@dataclass(slots=True)
class EpochEndOffset:
    epoch: int = -1
    end_offset: int = -1

    FIELDS: ClassVar[Fields] = (
        F("epoch", "int32", "12+"),
        F("end_offset", "int64", "12+"),
    )


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        F("leader_id", "int32", "12+"),
        F("leader_epoch", "int32", "12+"),
    )


@dataclass(slots=True)
class SnapshotId:
    end_offset: int = -1
    epoch: int = -1

    FIELDS: ClassVar[Fields] = (
        F("end_offset", "int64", "0+"),
        F("epoch", "int32", "0+"),
    )


@dataclass(slots=True)
class AbortedTransaction:
    producer_id: int = 0
    first_offset: int = 0

    FIELDS: ClassVar[Fields] = (
        F("producer_id", "int64", "4+"),
        F("first_offset", "int64", "4+"),
    )


@dataclass(slots=True)
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderIdAndEpoch | None = None
    snapshot_id: SnapshotId | None = None
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: int = -1
    records: Records | None = None

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("high_watermark", "int64", "0+"),
        F("last_stable_offset", "int64", "4+"),
        F("log_start_offset", "int64", "5+"),
        F("diverging_epoch", EpochEndOffset, "12+", tagged="12+", tag=0),
        F("current_leader", LeaderIdAndEpoch, "12+", tagged="12+", tag=1),
        F("snapshot_id", SnapshotId, "12+", tagged="12+", tag=2),
        F("aborted_transactions", (AbortedTransaction,), "4+", nullable="4+"),
        F("preferred_read_replica", "int32", "11+"),
        F("records", "records", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class FetchableTopicResponse:
    topic: str = ""
    topic_id: UUID = ZERO_UUID
    partitions: list[PartitionData] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0-12"),
        F("topic_id", "uuid", "13+"),
        F("partitions", (PartitionData,), "0+"),
    )


@dataclass(slots=True)
class NodeEndpoint:
    node_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("node_id", "int32", "16+"),
        F("host", "string", "16+"),
        F("port", "int32", "16+"),
        F("rack", "string", "16+", nullable="16+"),
    )


@dataclass(slots=True)
class FetchResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_FROM: ClassVar[int] = 12
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("error_code", "int16", "7+"),
        F("session_id", "int32", "7+"),
        F("responses", (FetchableTopicResponse,), "0+"),
        F("node_endpoints", (NodeEndpoint,), "16+", tagged="16+", tag=0),
    )
