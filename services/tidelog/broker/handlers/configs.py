"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.cluster.config_changes import (
    ALL_BROKERS,
    DELETE,
    PART_LOGGERS,
    ROOT_LOGGER,
    check_broker_name,
    current_level,
    refusals,
    set_level,
    unserved_resource,
)
from tidelog.broker.requests.error_responses import item_error
from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import ClientMetricsEntry
from tidelog.model.configs import ConfigResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import topic_name_problem
from tidelog.settings.setting_description import (
    SettingDescription,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from tidelog.settings.topic_settings import TOPIC_SETTINGS
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.cluster.controller_connection import ControllerConnection
    from tidelog.broker.cluster.current_settings import CurrentSettings
    from tidelog.broker.cluster.metadata_view import MetadataView
    from tidelog.broker.requests.request import RequestContext
    from tidelog.settings.broker_settings import BrokerSettings

_DYNAMIC_BROKER_LOGGER_CONFIG: Final = 6
_DYNAMIC_CLIENT_METRICS_CONFIG: Final = 7
_DEFAULT_CONFIG: Final = 5
_INT, _LIST = 3, 7
"""Kafka's `ConfigDef.Type` of the settings of client metrics."""
_FIRST_VERSION_WITH_TYPES = 1


class DescribeConfigsHandler:
    """DescribeConfigs v1 to v4: the settings of topics, of groups, of this broker, of all brokers (a broker
    without a name), or of a subscription to clients' metrics, with source, synonyms and, from v3 on, type and
    description.

    Another broker's settings are refused, because only that broker knows them. The loggers of a broker
    (BROKER_LOGGER) are `root` and its parts. A resource that is named twice is described once.
    """

    def __init__(self, settings: CurrentSettings, metadata: MetadataView) -> None:
        self._settings = settings
        self._metadata = metadata

    def handle(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse | Coroutine[object, None, DescribeConfigsResponse]:
        if len(request.resources) > 1:  # a few bytes that are repeated must not become a large response
            request.resources = list({_key(resource): resource for resource in request.resources}.values())
        description = _Description(self._settings.broker, self._metadata, request)
        return in_slices(_describe_all(description))


def _describe_all(description: _Description) -> Steps[DescribeConfigsResponse]:
    """Describes the resources. Kafka's tools ask for the settings of all topics at once."""
    results = []
    for resource in description.request.resources:
        results.append(description.result(resource))
        yield
    return DescribeConfigsResponse(results=results)


class _Description:
    """The results of one request. Topics share the descriptions of the settings that they do not override, so
    that a response for thousands of topics is built, encoded and freed in little time.
    """

    def __init__(
        self, settings: BrokerSettings, metadata: MetadataView, request: DescribeConfigsRequest
    ) -> None:
        self.request = request
        self._settings = settings
        self._metadata = metadata
        self._topic_defaults: dict[tuple[str, ...] | None, dict[str, DescribeConfigsResourceResult]] = {}

    def result(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = self._configs(resource)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        return result

    def _configs(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        names = resource.configuration_keys or None  # an empty list also means all settings
        settings, own_id = self._settings, self._settings.node_id
        match resource.resource_type:
            case ConfigResourceType.TOPIC:
                return self._topic(resource.resource_name, names)
            case ConfigResourceType.GROUP:
                return self._group(resource.resource_name, names)
            case ConfigResourceType.BROKER if resource.resource_name == ALL_BROKERS:
                return self._described(describe_cluster_default(settings, names))
            case ConfigResourceType.BROKER:
                check_broker_name(resource.resource_name, own_id)
                return self._described(describe_broker(settings, names))
            case ConfigResourceType.BROKER_LOGGER:
                check_broker_name(resource.resource_name, own_id)
                return _loggers(names)
            case ConfigResourceType.CLIENT_METRICS:
                return _subscription(resource.resource_name, names, self._metadata, self.request)
            case _:
                raise unserved_resource(resource.resource_type)

    def _group(self, group_id: str, names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        overrides = self._metadata.group_overrides(group_id)
        return self._described(describe_group(self._settings, overrides, names))

    def _topic(self, name: str, names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
        problem = topic_name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        state = self._metadata.topics.get(name)
        if state is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        key = None if names is None else tuple(names)
        defaults = self._topic_defaults.get(key)
        if defaults is None:
            described = self._described(describe_topic(self._settings, {}, names))
            defaults = self._topic_defaults[key] = {setting.name: setting for setting in described}
        if not state.configs:
            return list(defaults.values())
        overridden = state.configs if names is None else [name for name in names if name in state.configs]
        own = {
            setting.name: setting
            for setting in self._described(describe_topic(self._settings, state.configs, overridden))
        }
        settings = TOPIC_SETTINGS if names is None else dict.fromkeys(names)
        found = (own.get(name) or defaults.get(name) for name in settings)
        return [setting for setting in found if setting is not None]

    def _described(self, descriptions: Iterable[SettingDescription]) -> list[DescribeConfigsResourceResult]:
        return [_config(description, self.request) for description in descriptions]


def _key(resource: DescribeConfigsResource) -> tuple[object, ...]:
    names = resource.configuration_keys
    return resource.resource_type, resource.resource_name, None if names is None else tuple(names)


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


def _subscription(
    name: str, names: Collection[str] | None, metadata: MetadataView, request: DescribeConfigsRequest
) -> list[DescribeConfigsResourceResult]:
    """Describes a subscription to clients' metrics. As in Kafka, one that does not exist has the defaults."""
    from tidelog.model.client_metrics import DEFAULTS, DOCS, INTERVAL_MS

    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    entry = metadata.security.client_metrics.get(ClientMetricsEntry(name, {}).key)
    configs: Mapping[str, str] = {} if entry is None else entry.configs
    return [
        DescribeConfigsResourceResult(
            name=setting,
            value=configs.get(setting, default),
            config_source=_DYNAMIC_CLIENT_METRICS_CONFIG if setting in configs else _DEFAULT_CONFIG,
            config_type=_INT if setting == INTERVAL_MS else _LIST,
            documentation=DOCS[setting] if request.include_documentation else None,
        )
        for setting, default in DEFAULTS.items()
        if names is None or setting in names
    ]


def _loggers(names: Collection[str] | None) -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=logger, value=current_level(logger), config_source=_DYNAMIC_BROKER_LOGGER_CONFIG
        )
        for logger in (ROOT_LOGGER, *PART_LOGGERS)
        if names is None or logger in names
    ]


class AlterConfigsHandlers:
    """AlterConfigs v0 to v2 and IncrementalAlterConfigs v0 and v1: change settings of topics, brokers and
    groups.

    This broker checks its own settings, which no other broker may change, and passes the request on. The
    controller checks the settings of topics and groups and stores the changes. Deviations: a broker setting
    that Kafka does not know is refused, where Kafka stores it; a resource that AlterConfigs names twice is
    answered (Kafka 4.3 never answers); the only logger is root.
    """

    def __init__(self, settings: CurrentSettings, controller: ControllerConnection) -> None:
        self._settings = settings
        self._controller = controller

    async def replace(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        """Replaces all settings of the resources. A setting that the request does not name is reset to its
        default.
        """
        answer: AlterConfigsResponse = await self._pass_on(ApiKey.ALTER_CONFIGS, request, context)
        return answer

    async def alter(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        """Sets or resets single settings, appends to and subtracts from lists, and sets the levels of this
        broker's loggers.
        """
        answer: IncrementalAlterConfigsResponse = await self._pass_on(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request, context
        )
        return answer

    async def _pass_on(self, api_key: ApiKey, request: Any, context: RequestContext) -> Any:
        """Answers what this broker decides, and passes the other resources on."""
        response_class, resources = codec.response_class(api_key), request.resources

        def answer(resource: object, code: ErrorCode, message: str | None) -> Any:
            result = item_error(api_key, context.api_version, resource, code)
            result.error_message = message
            return result

        def refuse(code: ErrorCode, message: str | None) -> Any:
            return response_class(responses=[answer(resource, code, message) for resource in passed_on])

        is_incremental = api_key is ApiKey.INCREMENTAL_ALTER_CONFIGS
        refused = refusals(self._settings.broker, resources, is_incremental=is_incremental)
        answers = [answer(resources[index], error.code, error.message) for index, error in refused.items()]
        passed_on = []
        for index, resource in enumerate(resources):
            if index in refused:
                continue
            if resource.resource_type != ConfigResourceType.BROKER_LOGGER:
                passed_on.append(resource)
                continue
            if not request.validate_only:
                _set_log_levels(resource)
            answers.append(answer(resource, ErrorCode.NONE, None))
        if passed_on:
            rest = dataclasses.replace(request, resources=passed_on)
            response = await self._controller.forward_or_refuse(api_key, rest, context, refuse)
            answers += response.responses
        return response_class(responses=answers)


def _set_log_levels(resource: AlterConfigsResource) -> None:
    for change in resource.configs:
        set_level(change.name, None if change.config_operation == DELETE else change.value)


class ListConfigResourcesHandler:
    """ListConfigResources v0 and v1: the resources that have settings, which are topics, brokers and their
    loggers, the groups with settings of their own, and subscriptions to clients' metrics (KIP-1142).

    Version 0 was ListClientMetricsResources and lists only those subscriptions.
    """

    def __init__(self, metadata: MetadataView) -> None:
        self._metadata = metadata

    def handle(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse | Coroutine[object, None, ListConfigResourcesResponse]:
        subscriptions = [entry.name for entry in self._metadata.security.client_metrics.values()]
        if context.api_version < _FIRST_VERSION_WITH_TYPES:
            return ListConfigResourcesResponse(
                config_resources=[ConfigResource(name) for name in subscriptions]
            )
        known = [int(kind) for kind in ConfigResourceType]
        wanted = set(request.resource_types) or set(known)
        if not wanted.issubset(known):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(known.broker_id) for known, _ in self._metadata.endpoints(context.listener_name)]
        names = {
            ConfigResourceType.TOPIC: list(self._metadata.topics),
            ConfigResourceType.BROKER: brokers,
            ConfigResourceType.BROKER_LOGGER: brokers,
            ConfigResourceType.GROUP: self._metadata.groups_with_settings(),
            ConfigResourceType.CLIENT_METRICS: subscriptions,
        }
        return in_slices(_listed({kind: names[kind] for kind in names if kind in wanted}))


def _listed(
    names: Mapping[ConfigResourceType, Sequence[str]],
) -> Generator[None, None, ListConfigResourcesResponse]:
    resources = []
    for kind, of_kind in names.items():
        for name in of_kind:
            yield
            resources.append(ConfigResource(name, kind))
    return ListConfigResourcesResponse(config_resources=resources)
