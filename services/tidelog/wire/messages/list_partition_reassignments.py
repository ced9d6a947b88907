"""ListPartitionReassignmentsRequest and ListPartitionReassignmentsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ListPartitionReassignmentsTopics:
    name: str = ""
    partition_indexes: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partition_indexes", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None

    API_KEY: ClassVar[int] = 46
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("timeout_ms", "int32", "0+"),
        F("topics", (ListPartitionReassignmentsTopics,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class OngoingPartitionReassignment:
    partition_index: int = 0
    replicas: list[int] = field(default_factory=list)
    adding_replicas: list[int] = field(default_factory=list)
    removing_replicas: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("replicas", ("int32",), "0+"),
        F("adding_replicas", ("int32",), "0+"),
        F("removing_replicas", ("int32",), "0+"),
    )


@dataclass(slots=True)
class OngoingTopicReassignment:
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", (OngoingPartitionReassignment,), "0+"),
    )


@dataclass(slots=True)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = field(default_factory=list)

    API_KEY: ClassVar[int] = 46
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("topics", (OngoingTopicReassignment,), "0+"),
    )
