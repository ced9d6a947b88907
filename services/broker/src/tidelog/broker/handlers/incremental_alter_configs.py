"""IncrementalAlterConfigs v0 and v1: single settings of topics and brokers set, taken back, added to or
taken from (lists).

This broker checks its own settings (only it takes changes of them) and passes on; the controller checks
topics' and stores. Deviations: a broker setting that Kafka doesn't know is refused, where Kafka keeps it;
log levels (BROKER_LOGGER) can't be changed yet; groups and client metrics have no settings yet.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tidelog.broker.config_changes import refusals
from tidelog.broker.forwarding import forward
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    refused = refusals(broker, request.resources, is_incremental=True)
    answers = [
        _answer(resource, error.code, error.message)
        for resource, error in ((request.resources[index], error) for index, error in refused.items())
    ]
    passed_on = [resource for index, resource in enumerate(request.resources) if index not in refused]

    def refuse(code: ErrorCode, message: str | None) -> IncrementalAlterConfigsResponse:
        responses = [_answer(resource, code, message) for resource in passed_on]
        return IncrementalAlterConfigsResponse(responses=responses)

    if passed_on:
        rest = dataclasses.replace(request, resources=passed_on)
        response = await forward(broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, rest, context, refuse)
        answers += response.responses
    return IncrementalAlterConfigsResponse(responses=answers)


def _answer(
    resource: AlterConfigsResource, code: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(code, message, resource.resource_type, resource.resource_name)
