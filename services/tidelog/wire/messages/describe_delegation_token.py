"""DescribeDelegationTokenRequest and DescribeDelegationTokenResponse.

Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.schema import Buffer, F, Fields


@dataclass(slots=True)
class DescribeDelegationTokenOwner:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("principal_type", "string", "0+"),
        F("principal_name", "string", "0+"),
    )


@dataclass(slots=True)
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = field(default_factory=list)

    API_KEY: ClassVar[int] = 41
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("owners", (DescribeDelegationTokenOwner,), "0+", nullable="0+"),
    )


@dataclass(slots=True)
class DescribedDelegationTokenRenewer:
    principal_type: str = ""
    principal_name: str = ""

    FIELDS: ClassVar[Fields] = (
        F("principal_type", "string", "0+"),
        F("principal_name", "string", "0+"),
    )


@dataclass(slots=True)
class DescribedDelegationToken:
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = ""
    token_requester_principal_name: str = ""
    issue_timestamp: int = 0
    expiry_timestamp: int = 0
    max_timestamp: int = 0
    token_id: str = ""
    hmac: Buffer = b""
    renewers: list[DescribedDelegationTokenRenewer] = field(default_factory=list)

    FIELDS: ClassVar[Fields] = (
        F("principal_type", "string", "0+"),
        F("principal_name", "string", "0+"),
        F("token_requester_principal_type", "string", "3+"),
        F("token_requester_principal_name", "string", "3+"),
        F("issue_timestamp", "int64", "0+"),
        F("expiry_timestamp", "int64", "0+"),
        F("max_timestamp", "int64", "0+"),
        F("token_id", "string", "0+"),
        F("hmac", "bytes", "0+"),
        F("renewers", (DescribedDelegationTokenRenewer,), "0+"),
    )


@dataclass(slots=True)
class DescribeDelegationTokenResponse:
    error_code: int = 0
    tokens: list[DescribedDelegationToken] = field(default_factory=list)
    throttle_time_ms: int = 0

    API_KEY: ClassVar[int] = 41
    VERSIONS: ClassVar[tuple[int, int]] = (1, 3)
    FLEXIBLE_FROM: ClassVar[int] = 2
    FIELDS: ClassVar[Fields] = (
        F("error_code", "int16", "0+"),
        F("tokens", (DescribedDelegationToken,), "0+"),
        F("throttle_time_ms", "int32", "0+"),
    )
