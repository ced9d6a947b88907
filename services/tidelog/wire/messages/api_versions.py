"""ApiVersionsRequest and ApiVersionsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class ApiVersionsRequest:
    client_software_name: str = ""
    client_software_version: str = ""

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("client_software_name", "string", "3+"),
        F("client_software_version", "string", "3+"),
    )


@dataclass(slots=True)
class ApiVersion:
    api_key: int = 0
    min_version: int = 0
    max_version: int = 0

    FIELDS: ClassVar[Fields] = (
        F("api_key", "int16", "0+"),
        F("min_version", "int16", "0+"),
        F("max_version", "int16", "0+"),
    )


@dataclass(slots=True)
class SupportedFeatureKey:
    name: str = ""
    min_version: int = 0
    max_version: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "3+"),
        F("min_version", "int16", "3+"),
        F("max_version", "int16", "3+"),
    )


@dataclass(slots=True)
class FinalizedFeatureKey:
    name: str = ""
    max_version_level: int = 0
    min_version_level: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "3+"),
        F("max_version_level", "int16", "3+"),
        F("min_version_level", "int16", "3+"),
    )


@dataclass(slots=True)
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    throttle_time_ms: int = 0
    supported_features: list[SupportedFeatureKey] = field(default_factory=list)
    finalized_features_epoch: int = -1
    finalized_features: list[FinalizedFeatureKey] = field(default_factory=list)
    zk_migration_ready: bool = False

    API_KEY: ClassVar[int] = 18
    VERSIONS: ClassVar[tuple[int, int]] = (0, 4)
    FLEXIBLE_FROM: ClassVar[int] = 3
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("api_keys", (ApiVersion,), "0+"),
        F("throttle_time_ms", "int32", "1+"),
        F("supported_features", (SupportedFeatureKey,), "3+", tagged="3+", tag=0),
        F("finalized_features_epoch", "int64", "3+", tagged="3+", tag=1),
        F("finalized_features", (FinalizedFeatureKey,), "3+", tagged="3+", tag=2),
        F("zk_migration_ready", "bool", "3+", tagged="3+", tag=3),
    )
