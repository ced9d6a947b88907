"""DeleteTopics v1 to v6, by name or (from v6) topic id: the controller deletes, this broker passes on.

Names and ids that are unknown, named twice or both given, and `delete.topic.enable=false`, are the
controller's to refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_FIRST_VERSION_WITH_TOPIC_ID = 6


async def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    def refuse(code: ErrorCode, message: str | None) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(topic.name, topic.topic_id, code, message)
                for topic in _named(request, context.api_version)
            ]
        )

    return await forward(broker, ApiKey.DELETE_TOPICS, request, context, refuse)


def _named(request: DeleteTopicsRequest, version: int) -> list[DeleteTopicState]:
    if version >= _FIRST_VERSION_WITH_TOPIC_ID:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]
