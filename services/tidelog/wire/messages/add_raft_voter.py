"""AddRaftVoterRequest and AddRaftVoterResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from tidelog.wire.schema import ZERO_UUID, F, Fields


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("host", "string", "0+"),
        F("port", "uint16", "0+"),
    )


@dataclass(slots=True)
class AddRaftVoterRequest:
    cluster_id: str | None = ""
    timeout_ms: int = 0
    voter_id: int = 0
    voter_directory_id: UUID = ZERO_UUID
    listeners: list[Listener] = field(default_factory=list)
    ack_when_committed: bool = True

    API_KEY: ClassVar[int] = 80
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("cluster_id", "string", "0+", nullable="0+"),
        F("timeout_ms", "int32", "0+"),
        F("voter_id", "int32", "0+"),
        F("voter_directory_id", "uuid", "0+"),
        F("listeners", (Listener,), "0+"),
        F("ack_when_committed", "bool", "1+"),
    )


@dataclass(slots=True)
class AddRaftVoterResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""

    API_KEY: ClassVar[int] = 80
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )
