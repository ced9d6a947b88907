"""AlterUserScramCredentialsRequest and AlterUserScramCredentialsResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class ScramCredentialDeletion:
    name: str = ""
    mechanism: int = 0

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("mechanism", "int8", "0+"),
    )


@dataclass(slots=True)
class ScramCredentialUpsertion:
    name: str = ""
    mechanism: int = 0
    iterations: int = 0
    salt: Buffer = b""
    salted_password: Buffer = b""

    FIELDS: ClassVar[Fields] = (
        F("name", "string", "0+"),
        F("mechanism", "int8", "0+"),
        F("iterations", "int32", "0+"),
        F("salt", "bytes", "0+"),
        F("salted_password", "bytes", "0+"),
    )


@dataclass(slots=True)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = field(default_factory=list)
    upsertions: list[ScramCredentialUpsertion] = field(default_factory=list)

    API_KEY: ClassVar[int] = 51
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("deletions", (ScramCredentialDeletion,), "0+"),
        F("upsertions", (ScramCredentialUpsertion,), "0+"),
    )


@dataclass(slots=True)
class AlterUserScramCredentialsResult:
    user: str = ""
    error_code: int = 0
    error_message: str | None = ""

    FIELDS: ClassVar[Fields] = (
        F("user", "string", "0+"),
        F("error_code", "int16", "0+"),
        F("error_message", "string", "0+", nullable="0+"),
    )


@dataclass(slots=True)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = 0
    results: list[AlterUserScramCredentialsResult] = field(default_factory=list)

    API_KEY: ClassVar[int] = 51
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
    FIELDS: ClassVar[Fields] = (
        F("throttle_time_ms", "int32", "0+"),
        F("results", (AlterUserScramCredentialsResult,), "0+"),
    )
