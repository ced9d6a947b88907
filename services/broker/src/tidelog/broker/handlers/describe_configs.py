"""DescribeConfigs v1 to v4: settings of topics, of this broker or of all brokers (a broker without a
name), with source, synonyms and (v3) type and text.

Another broker's settings are refused, as only that broker knows them. A broker's loggers (BROKER_LOGGER)
are one, `root`. Deviation: groups and client metrics, whose settings aren't
supported yet, are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from tidelog.broker.config_resources import ALL_BROKERS, ResourceType, check_broker_name, unserved_resource
from tidelog.broker.log_levels import ROOT_LOGGER, current_level
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem
from tidelog.runtime.setting_description import (
    SettingDescription,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext

_DYNAMIC_BROKER_LOGGER_CONFIG: Final = 6


def handle(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = _configs(broker, resource, request)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _configs(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    names = resource.configuration_keys or None  # an empty list, too, stands for all
    match resource.resource_type:
        case ResourceType.TOPIC:
            described = _topic(broker, resource.resource_name, names)
        case ResourceType.BROKER if resource.resource_name == ALL_BROKERS:
            described = describe_cluster_default(broker.settings, names)
        case ResourceType.BROKER:
            check_broker_name(resource.resource_name, broker.broker_id)
            described = describe_broker(broker.settings, names)
        case ResourceType.BROKER_LOGGER:
            check_broker_name(resource.resource_name, broker.broker_id)
            return _loggers(names)
        case _:
            raise unserved_resource(resource.resource_type)
    return [_config(description, request) for description in described]


def _topic(broker: Broker, name: str, names: Collection[str] | None) -> list[SettingDescription]:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    state = broker.metadata.topics.get(name)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return describe_topic(broker.settings, state.configs, names)


def _config(
    description: SettingDescription, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=description.name,
        value=description.value,
        read_only=description.is_read_only,
        config_source=description.source,
        is_sensitive=description.is_sensitive,
        config_type=description.type,
        documentation=description.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(synonym.name, synonym.value, synonym.source)
            for synonym in description.synonyms
        ]
    return result


def _loggers(names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
    if names is not None and ROOT_LOGGER not in names:
        return []
    return [
        DescribeConfigsResourceResult(
            name=ROOT_LOGGER, value=current_level(), config_source=_DYNAMIC_BROKER_LOGGER_CONFIG
        )
    ]
