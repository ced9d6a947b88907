"""CreateDelegationTokenRequest and CreateDelegationTokenResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class CreatableRenewers:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("principal_type", "string", "0+"),
        F("principal_name", "string", "0+"),
    )


@dataclass(slots=True)
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = ""
    owner_principal_name: str | None = ""
    renewers: list[CreatableRenewers] = field(default_factory=list)
    max_lifetime_ms: int = 0

    API_KEY: ClassVar[int] = 38
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("owner_principal_type", "string", "3+", nullable="3+"),
        F("owner_principal_name", "string", "3+", nullable="3+"),
        F("renewers", (CreatableRenewers,), "0+"),
        F("max_lifetime_ms", "int64", "0+"),
    )


@dataclass(slots=True)
class CreateDelegationTokenResponse:
    error_code: int = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp_ms: int = 0
    expiry_timestamp_ms: int = 0
    max_timestamp_ms: int = 0
    token_id: str = ""
    hmac: Buffer = b""
    throttle_time_ms: int = 0

    API_KEY: ClassVar[int] = 38
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("principal_type", "string", "0+"),
        F("principal_name", "string", "0+"),
        F("token_requester_principal_type", "string", "3+"),
        F("token_requester_principal_name", "string", "3+"),
        F("issue_timestamp_ms", "int64", "0+"),
        F("expiry_timestamp_ms", "int64", "0+"),
        F("max_timestamp_ms", "int64", "0+"),
        F("token_id", "string", "0+"),
        F("hmac", "bytes", "0+"),
        F("throttle_time_ms", "int32", "0+"),
    )
