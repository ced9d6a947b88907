"""ShareGroupMemberMetadataKey and ShareGroupMemberMetadataValue.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import NOT_FLEXIBLE, F, Fields


@dataclass(slots=True)
class ShareGroupMemberMetadataKey:
    group_id: str = ""
    member_id: str = ""

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = NOT_FLEXIBLE
    FIELDS: ClassVar[Fields] = (
        F("group_id", "string", "0"),
        F("member_id", "string", "0"),
    )


@dataclass(slots=True)
class ShareGroupMemberMetadataValue:
    rack_id: str | None = ""
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = field(default_factory=list)

    API_KEY: ClassVar[int] = 10
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("rack_id", "string", "0+", nullable="0+"),
        F("client_id", "string", "0+"),
        F("client_host", "string", "0+"),
        F("subscribed_topic_names", ("string",), "0+"),
    )
