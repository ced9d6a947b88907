"""CreatePartitions v0 to v3: more partitions for topics that exist. The controller decides, this broker
passes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    def refuse(code: ErrorCode, message: str | None) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(
            results=[CreatePartitionsTopicResult(topic.name, code, message) for topic in request.topics]
        )

    return await forward(broker, ApiKey.CREATE_PARTITIONS, request, context, refuse)
