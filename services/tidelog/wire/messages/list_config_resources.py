"""ListConfigResourcesRequest and ListConfigResourcesResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ListConfigResourcesRequest:
    resource_types: list[int] = field(default_factory=list)

    API_KEY: ClassVar[int] = 74
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("resource_types", ("int8",), "1+"),
    )


@dataclass(slots=True)
class ConfigResource:
    resource_name: str = ""
    resource_type: int = 16

    FIELDS: ClassVar[Fields] = (
        F("resource_name", "string", "0+"),
        F("resource_type", "int8", "1+"),
    )


@dataclass(slots=True)
class ListConfigResourcesResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    config_resources: list[ConfigResource] = field(default_factory=list)

    API_KEY: ClassVar[int] = 74
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("config_resources", (ConfigResource,), "0+"),
    )
