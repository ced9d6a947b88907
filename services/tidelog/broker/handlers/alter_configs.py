"""AlterConfigs v0 to v2: replaces all settings of topics, brokers and groups. A setting that the request does
not name is reset to its default.

This broker checks its own settings, which no other broker may change, and passes the request on. The
controller checks the settings of topics and groups and stores the changes. Deviations: a broker setting that
Kafka does not know is refused, where Kafka stores it; a resource that is named twice is answered (Kafka 4.3
never answers).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tidelog.broker.cluster.config_changes import refusals
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.requests.request import RequestContext


class AlterConfigsHandler:
    """Answers AlterConfigs."""

    def __init__(self, settings: CurrentSettings, controller: ControllerConnection) -> None:
        self._settings = settings
        self._controller = controller

    async def handle(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        refused = refusals(self._settings.broker, request.resources, is_incremental=False)
        answers = [
            _answer(resource, error.code, error.message)
            for resource, error in ((request.resources[index], error) for index, error in refused.items())
        ]
        passed_on = [resource for index, resource in enumerate(request.resources) if index not in refused]

        def refuse(code: ErrorCode, message: str | None) -> AlterConfigsResponse:
            return AlterConfigsResponse(
                responses=[_answer(resource, code, message) for resource in passed_on]
            )

        if passed_on:
            rest = dataclasses.replace(request, resources=passed_on)
            response = await self._controller.forward_or_refuse(ApiKey.ALTER_CONFIGS, rest, context, refuse)
            answers += response.responses
        return AlterConfigsResponse(responses=answers)


def _answer(
    resource: AlterConfigsResource, code: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(code, message, resource.resource_type, resource.resource_name)
