"""ElectLeadersRequest and ElectLeadersResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class TopicPartitions:
    topic: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class ElectLeadersRequest:
    election_type: int = 0
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    timeout_ms: int = 60000

    API_KEY: ClassVar[int] = 43
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("election_type", "int8", "1+"),
        F("topic_partitions", (TopicPartitions,), "0+", nullable="0+"),
        F("timeout_ms", "int32", "0+"),
    )


@dataclass(slots=True)
class PartitionResult:
    partition_id: int = 0
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("partition_id", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class ReplicaElectionResult:
    topic: str = ""
    partition_result: list[PartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic", "string", "0+"),
        F("partition_result", (PartitionResult,), "0+"),
    )


@dataclass(slots=True)
class ElectLeadersResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 43
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "1+"),
        F("replica_election_results", (ReplicaElectionResult,), "0+"),
    )
