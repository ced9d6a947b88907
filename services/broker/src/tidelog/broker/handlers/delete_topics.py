"""DeleteTopics v1 to v6, by name or (from v6) topic id: the controller deletes, this broker passes on.

`delete.topic.enable=false` is answered TOPIC_DELETION_DISABLED. Names and ids that are unknown, named
twice or both given are the controller's to refuse.
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

_FIRST_VERSION_WITH_DELETION_DISABLED = 3
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

    if not broker.settings.delete_topic_enable:
        if context.api_version < _FIRST_VERSION_WITH_DELETION_DISABLED:
            return refuse(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled")
        return refuse(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled")
    return await forward(broker, ApiKey.DELETE_TOPICS, request, context, refuse)


def _named(request: DeleteTopicsRequest, version: int) -> list[DeleteTopicState]:
    if version >= _FIRST_VERSION_WITH_TOPIC_ID:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]
