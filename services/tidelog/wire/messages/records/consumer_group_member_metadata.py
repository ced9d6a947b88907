"""ConsumerGroupMemberMetadataKey and ConsumerGroupMemberMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, Buffer, F, Fields


@dataclass(slots=True)
class ConsumerGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 5
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class ClassicProtocol:
    name: str = ""
    metadata: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("metadata", "bytes", "0+"),
    )


@dataclass(slots=True)
class ClassicMemberMetadata:
    session_timeout_ms: int = 0
    supported_protocols: list[ClassicProtocol] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("session_timeout_ms", "int32", "0+"),
        F("supported_protocols", (ClassicProtocol,), "0+"),
    )


@dataclass(slots=True)
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)
    subscribed_topic_regex: str | None = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field(default_factory=ClassicMemberMetadata)

    API_KEY: ClassVar[int] = 5
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("subscribed_topic_names", ("string",), "0+"),
        F("subscribed_topic_regex", "string", "0+", nullable="0+"),
        F("rebalance_timeout_ms", "int32", "0+"),
        F("server_assignor", "string", "0+", nullable="0+"),
        F("classic_member_metadata", ClassicMemberMetadata, "0+", nullable="0+", tagged="0+", tag=0),
    )
