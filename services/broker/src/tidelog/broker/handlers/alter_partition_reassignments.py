"""AlterPartitionReassignments v0 and v1: other replicas for partitions, or an end to such a move. The
controller decides, this broker passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    def refuse(code: ErrorCode, message: str | None) -> AlterPartitionReassignmentsResponse:
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=message)

    return await forward(broker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, context, refuse)
