"""DeleteShareGroupOffsetsRequest and DeleteShareGroupOffsetsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
    )


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequest:
    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 92
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0+"),
        F("topics", (DeleteShareGroupOffsetsRequestTopic,), "0+"),
    )


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: UUID = ZERO_UUID
    error_code: int = 0
    error_message: str | None = None

    FIELDS: ClassVar[Fields] = (
        F("topic_name", "string", "0+"),
        F("topic_id", "uuid", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)

    API_KEY: ClassVar[int] = 92
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("responses", (DeleteShareGroupOffsetsResponseTopic,), "0+"),
    )
