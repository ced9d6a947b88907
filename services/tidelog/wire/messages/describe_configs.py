"""DescribeConfigsRequest and DescribeConfigsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class DescribeConfigsResource:
    resource_type: int = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("configuration_keys", ("string",), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = field(default_factory=list)
    include_synonyms: bool = False
    include_documentation: bool = False

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("resources", (DescribeConfigsResource,), "0+"),
        F("include_synonyms", "bool", "1+"),
        F("include_documentation", "bool", "3+"),
    )


@dataclass(slots=True)
class DescribeConfigsSynonym:
    name: str = ""
    value: str | None = ""
    source: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "1+"),
        F("value", "string", "1+", nullable="0+"),
        F("source", "int8", "1+"),
    )


@dataclass(slots=True)
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: int = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = field(default_factory=list)
    config_type: int = 0
    documentation: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("value", "string", "0+", nullable="0+"),
        F("read_only", "bool", "0+"),
        F("config_source", "int8", "1+"),
        F("is_sensitive", "bool", "0+"),
        F("synonyms", (DescribeConfigsSynonym,), "1+"),
        F("config_type", "int8", "3+"),
        F("documentation", "string", "3+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribeConfigsResult:
    error_code: int = 0
    error_message: str | None = ""
    resource_type: int = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("resource_type", "int8", "0+"),
        F("resource_name", "string", "0+"),
        F("configs", (DescribeConfigsResourceResult,), "0+"),
    )


@dataclass(slots=True)
class DescribeConfigsResponse:
    throttle_time_ms: int = 0
    results: list[DescribeConfigsResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[tuple[int, int]] = (1, 4)
    FLEXIBLE_FROM: ClassVar[int] = 4
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (DescribeConfigsResult,), "0+"),
    )
