"""DescribeDelegationToken v1 to v3: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: connections aren't
authenticated, as in an unsecured Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.request import RequestContext


def handle(
    request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
