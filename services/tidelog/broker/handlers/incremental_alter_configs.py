"""IncrementalAlterConfigs v0 and v1: sets or resets single settings of topics, brokers and groups, appends to
and subtracts from lists, and sets the level of this broker's root logger.

This broker checks its own settings, which no other broker may change, and passes the request on. The
controller checks the settings of topics and groups and stores the changes. Deviations: a broker setting that
Kafka does not know is refused, where Kafka stores it; client metrics have no settings yet; the only logger is
root.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tidelog.broker.cluster.config_changes import DELETE, ResourceType, refusals, set_level
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.requests.request import RequestContext


class IncrementalAlterConfigsHandler:
    """Answers IncrementalAlterConfigs."""

    def __init__(self, settings: CurrentSettings, controller: ControllerConnection) -> None:
        self._settings = settings
        self._controller = controller

    async def handle(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        refused = refusals(self._settings.broker, request.resources, is_incremental=True)
        answers = [
            _answer(resource, error.code, error.message)
            for resource, error in ((request.resources[index], error) for index, error in refused.items())
        ]
        accepted = [resource for index, resource in enumerate(request.resources) if index not in refused]
        passed_on = [
            resource for resource in accepted if resource.resource_type != ResourceType.BROKER_LOGGER
        ]
        for resource in accepted:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                if not request.validate_only:
                    _set_log_levels(resource)
                answers.append(_answer(resource, ErrorCode.NONE, None))

        def refuse(code: ErrorCode, message: str | None) -> IncrementalAlterConfigsResponse:
            responses = [_answer(resource, code, message) for resource in passed_on]
            return IncrementalAlterConfigsResponse(responses=responses)

        if passed_on:
            rest = dataclasses.replace(request, resources=passed_on)
            response = await self._controller.forward_or_refuse(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, rest, context, refuse
            )
            answers += response.responses
        return IncrementalAlterConfigsResponse(responses=answers)


def _set_log_levels(resource: AlterConfigsResource) -> None:
    for change in resource.configs:
        set_level(change.name, None if change.config_operation == DELETE else change.value)


def _answer(
    resource: AlterConfigsResource, code: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(code, message, resource.resource_type, resource.resource_name)
