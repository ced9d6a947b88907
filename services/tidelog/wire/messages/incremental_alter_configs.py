"""IncrementalAlterConfigsRequest and IncrementalAlterConfigsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class AlterableConfig:
    name: str = ""
    config_operation: int = 0
    value: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("config_operation", "int8", "0+"),
        F("value", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class AlterConfigsResource:
    resource_type: int = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("configs", (AlterableConfig,), "0+"),
    )


@dataclass(slots=True)
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = field(default_factory=list)
    validate_only: bool = False

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("resources", (AlterConfigsResource,), "0+"),
        F("validate_only", "bool", "0+"),
    )


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
    )


@dataclass(slots=True)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = 0
    responses: list[AlterConfigsResourceResponse] = field(default_factory=list)

    API_KEY: ClassVar[int] = 44
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_FROM: ClassVar[int] = 1
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("responses", (AlterConfigsResourceResponse,), "0+"),
    )
