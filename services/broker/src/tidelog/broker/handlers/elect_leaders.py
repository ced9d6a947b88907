"""ElectLeaders v0 to v2: preferred or (from v1) unclean election, of some partitions or all. The
controller decides, this broker passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    def refuse(code: ErrorCode, message: str | None) -> ElectLeadersResponse:
        # The error of the whole request came with v1; v0 has only those of its partitions.
        return ElectLeadersResponse(
            error_code=code,
            replica_election_results=[
                ReplicaElectionResult(
                    topic.topic, [PartitionResult(partition, code, message) for partition in topic.partitions]
                )
                for topic in request.topic_partitions or ()
            ],
        )

    return await forward(broker, ApiKey.ELECT_LEADERS, request, context, refuse)
