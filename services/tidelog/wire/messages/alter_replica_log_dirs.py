"""AlterReplicaLogDirsRequest and AlterReplicaLogDirsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class AlterReplicaLogDirTopic:
    name: str = ""
    partitions: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("partitions", ("int32",), "0+"),
    )


@dataclass(slots=True)
class AlterReplicaLogDir:
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("path", "string", "0+"),
        F("topics", (AlterReplicaLogDirTopic,), "0+"),
    )


@dataclass(slots=True)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = field(default_factory=list)

    API_KEY: ClassVar[int] = 34
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("dirs", (AlterReplicaLogDir,), "0+"),
    )


@dataclass(slots=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int = 0
    error_code: int = 0

    FIELDS: ClassVar[Fields] = (
        F("partition_index", "int32", "0+"),
        F("error_code", "int16", "0+"),
    )


@dataclass(slots=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("partitions", (AlterReplicaLogDirPartitionResult,), "0+"),
    )


@dataclass(slots=True)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = 0
    results: list[AlterReplicaLogDirTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 34
    VERSIONS: ClassVar[tuple[int, int]] = (1, 2)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (AlterReplicaLogDirTopicResult,), "0+"),
    )
