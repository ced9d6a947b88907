"""ShareAcknowledgeRequest and ShareAcknowledgeResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


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
class AcknowledgePartition:
    partition_index: int = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("acknowledgement_batches", (AcknowledgementBatch,), "0+"),
    )


@dataclass(slots=True)
class AcknowledgeTopic:
    topic_id: UUID = ZERO_UUID
    partitions: list[AcknowledgePartition] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", (AcknowledgePartition,), "0+"),
    )


@dataclass(slots=True)
class ShareAcknowledgeRequest:
    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int = 0
    is_renew_ack: bool = False
    topics: list[AcknowledgeTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 79
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+", nullable="0+"),
        F("member_id", "string", "0+", nullable="0+"),
        F("share_session_epoch", "int32", "0+"),
        F("is_renew_ack", "bool", "2+"),
        F("topics", (AcknowledgeTopic,), "0+"),
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
class PartitionData:
    partition_index: int = 0
    error_code: int = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("current_leader", LeaderIdAndEpoch, "0+"),
    )


@dataclass(slots=True)
class ShareAcknowledgeTopicResponse:
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
class ShareAcknowledgeResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    responses: list[ShareAcknowledgeTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)

    API_KEY: ClassVar[int] = 79
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("acquisition_lock_timeout_ms", "int32", "2+"),
        F("responses", (ShareAcknowledgeTopicResponse,), "0+"),
        F("node_endpoints", (NodeEndpoint,), "0+"),
    )
