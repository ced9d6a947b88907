"""Descriptions of groups, with what the client may do with them (KIP-430) if it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidelog.broker.authorized_operations import GROUP_OPERATIONS
from tidelog.broker.coordination.batched import ask_each, forward_batched

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.coordination.forwarding import WholeRequest
    from tidelog.broker.request import RequestContext


def forward_described(broker: Broker, request: WholeRequest, context: RequestContext) -> object:
    """What a handler returns."""
    if request.message.include_authorized_operations:
        return _with_operations(broker, request, context)
    return forward_batched(broker, request, context)


async def _with_operations(broker: Broker, request: WholeRequest, context: RequestContext) -> Any:
    response = await ask_each(broker, request, context)
    for group in response.groups:
        if not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
    return response
