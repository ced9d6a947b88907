"""ExpireDelegationToken v1 and v2: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: connections aren't
authenticated, as in an unsecured Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(request: ExpireDelegationTokenRequest, context: RequestContext) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )
