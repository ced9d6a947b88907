"""DescribeClientQuotas v0 and v1: the quotas whose entities match a filter (KIP-546). The controller
answers, this broker passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    def refuse(code: ErrorCode, message: str | None) -> DescribeClientQuotasResponse:
        return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)

    return await forward(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, request, context, refuse)
