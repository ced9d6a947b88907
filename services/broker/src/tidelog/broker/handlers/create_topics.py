"""CreateTopics v2 to v7: the controller decides and places, this broker passes on.

From v5 the answer tells a new topic's settings, which this broker adds as DescribeConfigs would tell them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.runtime.setting_description import describe_topic
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_FIRST_VERSION_WITH_CONFIGS = 5


async def handle(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    def refuse(code: ErrorCode, message: str | None) -> CreateTopicsResponse:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
                for topic in request.topics
            ]
        )

    response = await forward(broker, ApiKey.CREATE_TOPICS, request, context, refuse)
    if context.api_version >= _FIRST_VERSION_WITH_CONFIGS:
        overrides = {
            topic.name: {config.name: config.value for config in topic.configs if config.value is not None}
            for topic in request.topics
        }
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE:
                topic.configs = _configs(broker, overrides[topic.name])
    return response


def _configs(broker: Broker, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=described.name,
            value=described.value,
            read_only=described.is_read_only,
            config_source=described.source,
            is_sensitive=described.is_sensitive,
        )
        for described in sorted(describe_topic(broker.settings, overrides))
    ]
