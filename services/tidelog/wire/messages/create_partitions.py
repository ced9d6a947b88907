"""CreatePartitionsRequest and CreatePartitionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class CreatePartitionsAssignment:
    broker_ids: list[int] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("broker_ids", ("int32",), "0+"),
    )


@dataclass(slots=True)
class CreatePartitionsTopic:
    name: str = ""
    count: int = 0
    assignments: list[CreatePartitionsAssignment] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("count", "int32", "0+"),
        F("assignments", (CreatePartitionsAssignment,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = field(default_factory=list)
    timeout_ms: int = 0
    validate_only: bool = False

    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("topics", (CreatePartitionsTopic,), "0+"),
        F("timeout_ms", "int32", "0+"),
        F("validate_only", "bool", "0+"),
    )


@dataclass(slots=True)
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class CreatePartitionsResponse:
    throttle_time_ms: int = 0
    results: list[CreatePartitionsTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (CreatePartitionsTopicResult,), "0+"),
    )
