"""The checks of AlterConfigs and IncrementalAlterConfigs that the receiving broker makes before it forwards
the request.

As in Kafka, the broker checks the form of the request and its own settings, which only it knows. The
controller checks the rest.

The loggers of a broker are `root` and its parts (KIP-412). Their levels can be changed while the broker runs;
a restart resets them, as in Kafka. A part without a level of its own has that of the part above it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.broker.net.tls import TlsFileError, server_context
from tidelog.model.brokers import MAX_SHOWN_NAME_CHARS, parse_broker_id
from tidelog.model.configs import ConfigResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.process.structured_log import log_level, set_log_level, set_logger_level
from tidelog.settings.dynamic_settings import validate_broker_overrides
from tidelog.settings.tls_settings import plan_tls

if TYPE_CHECKING:
    from tidelog.settings.broker_settings import BrokerSettings


ALL_BROKERS: Final = ""
"""The name of the resource that means all brokers."""


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


SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


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
