"""RenewDelegationToken v1 and v2: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: connections aren't authenticated,
as in an unsecured Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: RenewDelegationTokenRequest, context: RequestContext) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )
