"""ConsumerGroupHeartbeatRequest and ConsumerGroupHeartbeatResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest:
    group_id: str = ""
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None

    API_KEY: ClassVar[int] = 68
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("member_id", "string", "0+"),
        F("member_epoch", "int32", "0+"),
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("rebalance_timeout_ms", "int32", "0+"),
        F("subscribed_topic_names", ("string",), "0+", nullable="0+"),
        F("subscribed_topic_regex", "string", "1+", nullable="1+"),
        F("server_assignor", "string", "0+", nullable="0+"),
        F("topic_partitions", (TopicPartitions,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_partitions", (TopicPartitions,), "0+"),
    )


@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None

    API_KEY: ClassVar[int] = 68
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("member_id", "string", "0+", nullable="0+"),
        F("member_epoch", "int32", "0+"),
        F("heartbeat_interval_ms", "int32", "0+"),
        F("assignment", Assignment, "0+", nullable="0+"),
    )
