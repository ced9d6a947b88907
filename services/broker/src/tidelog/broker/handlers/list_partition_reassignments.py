"""ListPartitionReassignments v0: the moves of replicas that are under way, all or of some partitions. The
controller answers, this broker passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    def refuse(code: ErrorCode, message: str | None) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_code=code, error_message=message)

    return await forward(broker, ApiKey.LIST_PARTITION_REASSIGNMENTS, request, context, refuse)
