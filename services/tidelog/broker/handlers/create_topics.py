"""CreateTopics v2 to v7: forwards the request to the controller, which decides and places the replicas.

From v5 on, the response contains the settings of each new topic. This broker adds them, as DescribeConfigs
would describe them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode
from tidelog.settings.setting_description import describe_topic
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.view import CurrentSettings
    from tidelog.broker.requests.request import RequestContext

_FIRST_VERSION_WITH_CONFIGS = 5


class CreateTopicsHandler:
    """Answers CreateTopics."""

    def __init__(self, settings: CurrentSettings, controller: ControllerConnection) -> None:
        self._settings = settings
        self._controller = controller

    async def handle(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        def refuse(code: ErrorCode, message: str | None) -> CreateTopicsResponse:
            return CreateTopicsResponse(
                topics=[
                    CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
                    for topic in request.topics
                ]
            )

        response = await self._controller.forward_or_refuse(ApiKey.CREATE_TOPICS, request, context, refuse)
        if context.api_version >= _FIRST_VERSION_WITH_CONFIGS:
            overrides = {
                topic.name: {
                    config.name: config.value for config in topic.configs if config.value is not None
                }
                for topic in request.topics
            }
            await run_in_slices(self._describe(response.topics, overrides))
        return response

    def _describe(
        self, topics: Iterable[CreatableTopicResult], overrides: Mapping[str, Mapping[str, str]]
    ) -> Steps[None]:
        """Adds the settings of the topics that were created. Topics with equal overrides share one list."""
        described: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}
        for topic in topics:
            yield
            if topic.error_code != ErrorCode.NONE:
                continue
            key = frozenset(overrides[topic.name].items())
            if key not in described:
                described[key] = self._configs(overrides[topic.name])
            topic.configs = described[key]

    def _configs(self, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        return [
            CreatableTopicConfigs(
                name=described.name,
                value=described.value,
                read_only=described.is_read_only,
                config_source=described.source,
                is_sensitive=described.is_sensitive,
            )
            for described in sorted(describe_topic(self._settings.broker, overrides))
        ]
