"""AlterClientQuotas v0 and v1: quotas of users, client ids and addresses (KIP-546). The controller keeps
them, this broker passes on.

Deviation: quotas are kept and described, but not enforced yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ResponseEntryData,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    def refuse(code: ErrorCode, message: str | None) -> AlterClientQuotasResponse:
        return AlterClientQuotasResponse(
            entries=[ResponseEntryData(code, message, entry.entity) for entry in request.entries]
        )

    return await forward(broker, ApiKey.ALTER_CLIENT_QUOTAS, request, context, refuse)
