"""UpdateFeaturesRequest and UpdateFeaturesResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class FeatureUpdateKey:
    feature: str = ""
    max_version_level: int = 0
    allow_downgrade: bool = False
    upgrade_type: int = 1

    FIELDS: ClassVar[Fields] = (
        F("feature", "string", "0+"),
        F("max_version_level", "int16", "0+"),
        F("allow_downgrade", "bool", "0"),
        F("upgrade_type", "int8", "1+"),
    )


@dataclass(slots=True)
class UpdateFeaturesRequest:
    timeout_ms: int = 60000
    feature_updates: list[FeatureUpdateKey] = field(default_factory=list)
    validate_only: bool = False

    API_KEY: ClassVar[int] = 57
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("timeout_ms", "int32", "0+"),
        F("feature_updates", (FeatureUpdateKey,), "0+"),
        F("validate_only", "bool", "1+"),
    )


@dataclass(slots=True)
class UpdatableFeatureResult:
    feature: str = ""
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("feature", "string", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class UpdateFeaturesResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[UpdatableFeatureResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 57
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("results", (UpdatableFeatureResult,), "0-1"),
    )
