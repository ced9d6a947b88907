"""DescribeUserScramCredentialsRequest and DescribeUserScramCredentialsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import F, Fields


@dataclass(slots=True)
class UserName:
    name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
    )


@dataclass(slots=True)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = field(default_factory=list)

    API_KEY: ClassVar[int] = 50
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("users", (UserName,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class CredentialInfo:
    mechanism: int = 0
    iterations: int = 0

    FIELDS: ClassVar[Fields] = (
        F("mechanism", "int8", "0+"),
        F("iterations", "int32", "0+"),
    )


@dataclass(slots=True)
class DescribeUserScramCredentialsResult:
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("user", "string", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("credential_infos", (CredentialInfo,), "0+"),
    )


@dataclass(slots=True)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 50
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
        F("results", (DescribeUserScramCredentialsResult,), "0+"),
    )
