"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

As in Kafka, the broker that receives a change checks the form of the request and its own settings, which only
it knows, before it forwards the request. The controller checks the rest.

The loggers of a broker are `root` and its parts (KIP-412). Their levels can be changed while the broker runs;
a restart resets them, as in Kafka. A part without a level of its own has that of the part above it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidelog.broker.net.tls import TlsFileError, server_context
from tidelog.broker.requests.error_responses import item_error
from tidelog.kernel.slices import in_slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import ClientMetricsEntry
from tidelog.model.brokers import MAX_SHOWN_NAME_CHARS, parse_broker_id
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.model.topics import topic_name_problem
from tidelog.process.structured_log import log_level, set_log_level, set_logger_level
from tidelog.settings.setting_description import (
    SettingDescription,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from tidelog.settings.setting_sources import validate_broker_overrides
from tidelog.settings.tls_settings import plan_tls
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
    from tidelog.broker.cluster.view import CurrentSettings, MetadataView
    from tidelog.broker.requests.request import RequestContext
    from tidelog.settings.broker_settings import BrokerSettings

_DYNAMIC_BROKER_LOGGER_CONFIG: Final = 6
_DYNAMIC_CLIENT_METRICS_CONFIG: Final = 7
_DEFAULT_CONFIG: Final = 5
_INT, _LIST = 3, 7
"""Kafka's `ConfigDef.Type` of the settings of client metrics."""
_FIRST_VERSION_WITH_TYPES = 1
ALL_BROKERS: Final = ""
"""The name of the resource that means all brokers."""
ROOT_LOGGER: Final = "root"
PART_LOGGERS: Final = (
    "tidelog.audit",
    "tidelog.broker",
    "tidelog.broker.coordination",
    "tidelog.broker.handlers",
    "tidelog.broker.log",
    "tidelog.broker.partition",
    "tidelog.broker.replication",
    "tidelog.controller",
    "tidelog.group_coordinator",
    "tidelog.metadata",
    "tidelog.metrics",
    "tidelog.rpc",
    "tidelog.tracing",
)
"""The loggers below `root` that have a level. Each stands for all modules of its package."""
# Maps Kafka's names of levels to ours.
_LEVELS: Final = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "ERROR": "error",
    "FATAL": "error",
}
_SHOWN_LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


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


def check_broker_name(name: str, own_id: int) -> None:
    """Raises KafkaError(INVALID_REQUEST) unless `name` is this broker's id. Each broker answers only for its
    own settings.
    """
    broker_id = parse_broker_id(name)
    if broker_id is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker id must be an integer, but it is: {name[:MAX_SHOWN_NAME_CHARS]}",
        )
    if broker_id != own_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}, but received {name}"
        )


def unserved_resource(resource_type: int) -> KafkaError:
    """Returns the error for a type of resource that has no settings in tidelog."""
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def current_level(logger: str = ROOT_LOGGER) -> str:
    """Returns the level of a logger under Kafka's name."""
    return _SHOWN_LEVELS[log_level("" if logger == ROOT_LOGGER else logger)]


def check_level(logger: str, level: str) -> None:
    """Raises KafkaError(INVALID_CONFIG) unless the logger exists and the level is valid."""
    if logger != ROOT_LOGGER and logger not in PART_LOGGERS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Logger {logger} does not exist; DescribeConfigs lists the loggers of this broker",
        )
    if level.upper() not in _LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{level} is not a log level; valid levels are {', '.join(sorted(_LEVELS))}",
        )


def set_level(logger: str, level: str | None) -> None:
    """Changes the level of a logger to one that passed `check_level`. None takes the level of a part away."""
    if logger == ROOT_LOGGER and level is not None:
        set_log_level(_LEVELS[level.upper()])
    else:
        set_logger_level(logger, None if level is None else _LEVELS[level.upper()])


class Change(Protocol):
    """The new value of a setting: the common fields of `AlterableConfig` in the two requests."""

    name: str
    value: str | None


class Resource(Protocol):
    """The common fields of `AlterConfigsResource` in the two requests."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[Change]: ...


def refusals(
    settings: BrokerSettings, resources: Sequence[Resource], *, is_incremental: bool
) -> dict[int, KafkaError]:
    """Returns the error of each rejected resource by its index."""
    times_named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    refused = {}
    for index, resource in enumerate(resources):
        try:
            if times_named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once")
            _check(settings, resource, is_incremental)
        except KafkaError as error:
            refused[index] = error
    return refused


def _check(settings: BrokerSettings, resource: Resource, is_incremental: bool) -> None:
    names = Counter(change.name for change in resource.configs)
    if len(names) < len(resource.configs):
        twice = ", ".join(name for name, times in names.items() if times > 1)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Settings are named more than once: {twice}")
    nulls = [
        change.name for change in resource.configs if change.value is None and _operation(change) != DELETE
    ]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(nulls)}")
    for change in resource.configs:
        if _operation(change) not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation {_operation(change)} for {change.name}"
            )
    if resource.resource_type == ConfigResourceType.BROKER:
        _check_broker(settings, resource, is_incremental)
    elif resource.resource_type == ConfigResourceType.BROKER_LOGGER and is_incremental:
        check_broker_name(resource.resource_name, settings.node_id)
        for change in resource.configs:
            _check_log_level(change)
    elif resource.resource_type not in (
        ConfigResourceType.TOPIC,
        ConfigResourceType.GROUP,
        ConfigResourceType.CLIENT_METRICS,
    ):
        raise unserved_resource(resource.resource_type)


def _check_log_level(change: Change) -> None:
    if _operation(change) not in (SET, DELETE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A log level can only be set; it is not a list")
    check_level(change.name, change.value or "" if _operation(change) == SET else "INFO")
    if _operation(change) == DELETE and change.name == ROOT_LOGGER:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The level of the root logger cannot be deleted")


def _operation(change: Change) -> int:
    """Returns the operation of a change. AlterConfigs has no operations; its changes count as SET."""
    operation: int = getattr(change, "config_operation", SET)
    return operation


def _check_broker(settings: BrokerSettings, resource: Resource, is_incremental: bool) -> None:
    """Raises KafkaError if the changed settings contradict those with which this broker was started."""
    is_own = resource.resource_name != ALL_BROKERS
    if is_own:
        check_broker_name(resource.resource_name, settings.node_id)
    layers = settings.layers
    overrides: dict[str, str | None] = {}
    if is_incremental:
        overrides |= layers.dynamic if is_own else layers.dynamic_default
    for change in resource.configs:
        operation = _operation(change)
        if operation == DELETE:
            overrides.pop(change.name, None)
        elif operation == SET:  # the controller checks changes of lists, because it makes them
            overrides[change.name] = change.value
    changed = validate_broker_overrides(overrides, per_broker=is_own, broker=settings)
    if changed is not None and is_own:
        _check_certificates(settings, changed)


def _check_certificates(settings: BrokerSettings, changed: BrokerSettings) -> None:
    """Raises KafkaError if a listener cannot use its changed certificates. It would keep the earlier ones,
    although the change was accepted.
    """
    for endpoint in settings.listener_plan().bind:
        name = endpoint.listener_name
        if endpoint.security_protocol.endswith("SSL"):
            plan = plan_tls(name, changed.listener_value)
            if plan != plan_tls(name, settings.listener_value):
                try:
                    server_context(plan)
                except TlsFileError as error:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"listener {name}: {error}") from None
