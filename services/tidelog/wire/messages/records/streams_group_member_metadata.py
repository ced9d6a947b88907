"""StreamsGroupMemberMetadataKey and StreamsGroupMemberMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class StreamsGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class Endpoint:
    host: str = ""
    port: int = 0

    FIELDS: ClassVar[Fields] = (
        F("host", "string", "0+"),
        F("port", "uint16", "0+"),
    )


@dataclass(slots=True)
class KeyValue:
    key: str = ""
    value: str = ""

    FIELDS: ClassVar[Fields] = (
        F("key", "string", "0+"),
        F("value", "string", "0+"),
    )


@dataclass(slots=True)
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = ""
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = field(default_factory=list)

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("instance_id", "string", "0+", nullable="0+"),
        F("rack_id", "string", "0+", nullable="0+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("rebalance_timeout_ms", "int32", "0+"),
        F("topology_epoch", "int32", "0+"),
        F("process_id", "string", "0+"),
        F("user_endpoint", Endpoint, "0+", nullable="0+"),
        F("client_tags", (KeyValue,), "0+"),
    )
