"""CreateDelegationToken and DescribeDelegationToken, v1 to v3; RenewDelegationToken and
ExpireDelegationToken, v1 and v2. Connections are not authenticated, so these requests fail with
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, as in an unsecured Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tidelog.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tidelog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tidelog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext

_NOT_ALLOWED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
_ANONYMOUS: Final = ("User", "ANONYMOUS")
_NO_TIME: Final = -1


def create_delegation_token(
    request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        _NOT_ALLOWED,
        *_ANONYMOUS,
        *_ANONYMOUS,
        issue_timestamp_ms=_NO_TIME,
        expiry_timestamp_ms=_NO_TIME,
        max_timestamp_ms=_NO_TIME,
    )


def renew_delegation_token(
    request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(_NOT_ALLOWED, expiry_timestamp_ms=_NO_TIME)


def expire_delegation_token(
    request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(_NOT_ALLOWED, expiry_timestamp_ms=_NO_TIME)


def describe_delegation_token(
    request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(_NOT_ALLOWED)
