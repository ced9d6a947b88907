"""ConsumerGroupDescribeRequest and ConsumerGroupDescribeResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = field(default_factory=list)
    include_authorized_operations: bool = False

    API_KEY: ClassVar[int] = 69
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_ids", ("string",), "0+"),
        F("include_authorized_operations", "bool", "0+"),
    )


@dataclass(slots=True)
class TopicPartitions:
    topic_id: UUID = ZERO_UUID
    topic_name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_id", "uuid", "0+"),
        F("topic_name", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_partitions", (TopicPartitions,), "0+"),
    )


@dataclass(slots=True)
class Member:
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    subscribed_topic_regex: str | None = None
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    member_type: int = -1

    FIELDS: ClassVar[Fields] = (
        F("member_id", "string", "0+"),
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("member_epoch", "int32", "0+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("subscribed_topic_names", ("string",), "0+"),
        F("subscribed_topic_regex", "string", "0+", nullable="0+"),
        F("assignment", Assignment, "0+"),
        F("target_assignment", Assignment, "0+"),
        F("member_type", "int8", "1+"),
    )


@dataclass(slots=True)
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: int = -2147483648

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("group_id", "string", "0+"),
        F("group_state", "string", "0+"),
        F("group_epoch", "int32", "0+"),
        F("assignment_epoch", "int32", "0+"),
        F("assignor_name", "string", "0+"),
        F("members", (Member,), "0+"),
        F("authorized_operations", "int32", "0+"),
    )


@dataclass(slots=True)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = 0
    groups: list[DescribedGroup] = field(default_factory=list)

    API_KEY: ClassVar[int] = 69
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("groups", (DescribedGroup,), "0+"),
    )
