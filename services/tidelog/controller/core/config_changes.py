"""AlterConfigs and IncrementalAlterConfigs (KIP-339) of topics, brokers and groups.

Each broker answers for its own loggers. The subscriptions to clients' metrics (KIP-714) are settings of a
resource, too. Kafka accepts settings of unknown topics in some modes; tidelog always refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Steps,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import (
    BrokerConfigEntry,
    ClientMetricsEntry,
    GroupConfigEntry,
    TopicConfigEntry,
    group_config_key,
)
from tidelog.model.brokers import MAX_SHOWN_NAME_CHARS, parse_broker_id
from tidelog.model.client_metrics import parse_subscription
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import ConfigOperation, ConfigResourceType
from tidelog.model.topics import MAX_NAME_BYTES, is_too_long, topic_name_problem
from tidelog.wire.messages import alter_configs as full
from tidelog.wire.messages import incremental_alter_configs as incremental

MAX_CONFIG_VALUE_CHARS: Final = 32_767
MAX_SUBSCRIPTIONS: Final = 200
"""The subscriptions to clients' metrics. Every broker holds all of them in memory."""

MAX_GROUPS: Final = 100_000
"""The groups with settings of their own. Every broker holds their settings in memory."""


Overrides = Mapping[str, str]


class _Change(NamedTuple):
    """One resource of a request. `replace` makes the new overrides from the current ones."""

    kind: int
    name: str
    setting_names: tuple[str, ...]
    replace: Callable[[Overrides], dict[str, str | None]]


class _Answer(NamedTuple):
    """The words of the response about a resource, in the order of its fields."""

    code: ErrorCode
    message: str | None
    kind: int
    name: str


def alter_configs(
    state: ClusterState, context: Context, request: full.AlterConfigsRequest, api_version: int
) -> DecisionSteps[full.AlterConfigsResponse]:
    """Replaces all settings of each resource by the given ones. A null value removes a setting."""

    def change(resource: full.AlterConfigsResource) -> _Change:
        after = {config.name: config.value for config in resource.configs if config.value is not None}
        names = tuple(config.name for config in resource.configs)
        return _Change(resource.resource_type, resource.resource_name, names, lambda before: dict(after))

    changes = [change(resource) for resource in request.resources]
    answers, records = yield from _alter_all(state, context, changes, validate_only=request.validate_only)
    responses = [full.AlterConfigsResourceResponse(*answer) for answer in answers]
    return ControllerDecision(records, full.AlterConfigsResponse(responses=responses))


def incremental_alter_configs(
    state: ClusterState,
    context: Context,
    request: incremental.IncrementalAlterConfigsRequest,
    api_version: int,
) -> DecisionSteps[incremental.IncrementalAlterConfigsResponse]:
    """Changes settings of each resource one by one: SET, DELETE, APPEND, SUBTRACT."""

    def change(resource: incremental.AlterConfigsResource) -> _Change:
        names = tuple(config.name for config in resource.configs)
        return _Change(
            resource.resource_type,
            resource.resource_name,
            names,
            lambda before: _changed(context, resource, before),
        )

    changes = [change(resource) for resource in request.resources]
    answers, records = yield from _alter_all(state, context, changes, validate_only=request.validate_only)
    responses = [incremental.AlterConfigsResourceResponse(*answer) for answer in answers]
    return ControllerDecision(records, incremental.IncrementalAlterConfigsResponse(responses=responses))


def _alter_all(
    state: ClusterState, context: Context, changes: Sequence[_Change], *, validate_only: bool
) -> Steps[tuple[list[_Answer], tuple[Record, ...]]]:
    given = Counter((change.kind, change.name) for change in changes)
    answers: list[_Answer] = []
    records: list[Record] = []
    for change in changes:
        yield
        try:
            if given[(change.kind, change.name)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len(set(change.setting_names)) != len(change.setting_names):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys.")
            records += _records_of(state, context, change)
            answers.append(_Answer(ErrorCode.NONE, None, change.kind, change.name))
        except KafkaError as error:
            answers.append(_Answer(error.code, error.message, change.kind, change.name))
    return answers, () if validate_only else tuple(records)


def _records_of(state: ClusterState, context: Context, change: _Change) -> tuple[Record, ...]:
    if change.kind == ConfigResourceType.TOPIC:
        return _topic_records(state, context, change)
    if change.kind == ConfigResourceType.BROKER:
        return _broker_records(state, context, change)
    if change.kind == ConfigResourceType.GROUP:
        return _group_records(state, context, change)
    if change.kind == ConfigResourceType.CLIENT_METRICS:
        return _client_metrics_records(state, change)
    names = {int(kind): kind.name for kind in ConfigResourceType}
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Settings of resource type {names.get(change.kind, change.kind)} cannot be changed here.",
    )


def _topic_records(state: ClusterState, context: Context, change: _Change) -> tuple[Record, ...]:
    problem = topic_name_problem(change.name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if change.name not in state.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{change.name}' does not exist.")
    before = state.configs_of(change.name)
    after = change.replace(before)
    context.rules.settings.validate_topic(after)
    entry = TopicConfigEntry(change.name, _without_none(after))
    return _records_to_write(entry, before)


def _broker_records(state: ClusterState, context: Context, change: _Change) -> tuple[Record, ...]:
    name = change.name
    if name and parse_broker_id(name) is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unable to parse broker name '{name[:MAX_SHOWN_NAME_CHARS]}' as a base 10 number.",
        )
    before = state.broker_configs.get(name, {})
    after = change.replace(before)
    context.rules.settings.validate_broker(name, after)
    entry = BrokerConfigEntry(name, _without_none(after))
    return _records_to_write(entry, before)


def _group_records(state: ClusterState, context: Context, change: _Change) -> tuple[Record, ...]:
    """Returns the record of a group's settings. The group need not exist."""
    if not change.name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    known = state.group_configs.get(group_config_key(change.name))
    if known is None and is_too_long(change.name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"A group id with settings may have at most {MAX_NAME_BYTES} bytes."
        )
    before: Overrides = {} if known is None else known.configs
    after = change.replace(before)
    context.rules.settings.validate_group(after)
    entry = GroupConfigEntry(change.name, _without_none(after))
    records = _records_to_write(entry, before)
    if records and known is None and len(state.group_configs) >= MAX_GROUPS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{MAX_GROUPS} groups of the cluster have settings of their own already.",
        )
    return records


def _client_metrics_records(state: ClusterState, change: _Change) -> tuple[Record, ...]:
    key = ClientMetricsEntry(change.name, {}).key
    known = state.client_metrics.get(key)
    before: Overrides = {} if known is None else known.configs
    entry = ClientMetricsEntry(change.name, _without_none(change.replace(before)))
    parse_subscription(entry.name, entry.configs)
    records = _records_to_write(entry, before)
    if records and known is None and len(state.client_metrics) >= MAX_SUBSCRIPTIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster has {MAX_SUBSCRIPTIONS} subscriptions to clients' metrics already.",
        )
    return records


def _records_to_write(
    entry: TopicConfigEntry | BrokerConfigEntry | GroupConfigEntry | ClientMetricsEntry, before: Overrides
) -> tuple[Record, ...]:
    """Returns the record that puts the entry in place of the settings `before`, or none if they are equal."""
    if entry.configs == before:
        return ()
    return (Write(entry) if entry.configs else Erase(entry.key),)


def _changed(
    context: Context, resource: incremental.AlterConfigsResource, before: Overrides
) -> dict[str, str | None]:
    """Returns `before` with each operation applied."""
    after: dict[str, str | None] = dict(before)
    settings = context.rules.settings
    list_default = {
        int(ConfigResourceType.TOPIC): settings.topic_list_default,
        int(ConfigResourceType.BROKER): settings.broker_list_default,
        int(ConfigResourceType.CLIENT_METRICS): _client_metrics_list_default,
    }.get(resource.resource_type, _no_list_default)
    for config in resource.configs:
        operation = config.config_operation
        if operation == ConfigOperation.DELETE:
            after.pop(config.name, None)
            continue
        if operation not in ConfigOperation.__members__.values():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation}.")
        if config.value is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Null value not supported for {config.name} with this operation."
            )
        value = config.value
        if operation != ConfigOperation.SET:
            value = _edited_list(
                ConfigOperation(operation), config.name, after.get(config.name), value, list_default
            )
        if len(value) > MAX_CONFIG_VALUE_CHARS:  # as in Kafka, also of a list that grew step by step
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The value of {config.name} is longer than {MAX_CONFIG_VALUE_CHARS} characters.",
            )
        after[config.name] = value
    return after


def _no_list_default(name: str) -> None:
    """Returns None, because no setting of a group is a list."""


def _edited_list(
    operation: ConfigOperation,
    name: str,
    current: str | None,
    value: str,
    list_default: Callable[[str], str | None],
) -> str:
    default = list_default(name)
    if default is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot {operation.name} to key {name} because its type is not LIST.",
        )
    elements = _split(default if current is None else current)
    changed = _split(value)
    if operation == ConfigOperation.APPEND:
        known = set(elements)
        elements += [element for element in dict.fromkeys(changed) if element not in known]
    else:
        removed = set(changed)
        elements = [element for element in elements if element not in removed]
    return ",".join(elements)


def _client_metrics_list_default(name: str) -> str | None:
    return "" if name in ("metrics", "match") else None


def _split(text: str) -> list[str]:
    return [element.strip() for element in text.split(",") if element.strip()]


def _without_none(overrides: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in overrides.items() if value is not None}
