"""DeleteTopicsRequest and DeleteTopicsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID = ZERO_UUID

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "6+", nullable="6+"),
        F("topic_id", "uuid", "6+"),
    )


@dataclass(slots=True)
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = field(default_factory=list)
    topic_names: list[str] = field(default_factory=list)
    timeout_ms: int = 0

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("topics", (DeleteTopicState,), "6+"),
        F("topic_names", ("string",), "0-5"),
        F("timeout_ms", "int32", "0+"),
    )


@dataclass(slots=True)
class DeletableTopicResult:
    name: str | None = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+", nullable="6+"),
        F("topic_id", "uuid", "6+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "5+", nullable="5+"),
    )


@dataclass(slots=True)
class DeleteTopicsResponse:
    throttle_time_ms: int = 0
    responses: list[DeletableTopicResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 20
    VERSIONS: ClassVar[tuple[int, int]] = (1, 6)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "1+"),
        F("responses", (DeletableTopicResult,), "0+"),
    )
