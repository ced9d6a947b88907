"""CreateDelegationToken v1 to v3: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: connections aren't authenticated,
as in an unsecured Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


_ANONYMOUS: Final = ("User", "ANONYMOUS")
_NO_TIME: Final = -1


def handle(request: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        *_ANONYMOUS,
        *_ANONYMOUS,
        issue_timestamp_ms=_NO_TIME,
        expiry_timestamp_ms=_NO_TIME,
        max_timestamp_ms=_NO_TIME,
    )
