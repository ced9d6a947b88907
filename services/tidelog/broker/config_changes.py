"""The checks of AlterConfigs and IncrementalAlterConfigs that the receiving broker makes before it forwards
the request.

As in Kafka, the broker checks the form of the request and its own settings, which only it knows. The
controller checks the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.broker.config_resources import (
    ALL_BROKERS,
    ROOT_LOGGER,
    ResourceType,
    check_broker_name,
    check_level,
    unserved_resource,
)
from tidelog.broker.tls import TlsFileError, server_context
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.settings.dynamic_settings import validate_broker_overrides
from tidelog.settings.tls_settings import plan_tls

if TYPE_CHECKING:
    from tidelog.settings.broker_settings import BrokerSettings

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
    if resource.resource_type == ResourceType.BROKER:
        _check_broker(settings, resource, is_incremental)
    elif resource.resource_type == ResourceType.BROKER_LOGGER and is_incremental:
        check_broker_name(resource.resource_name, settings.node_id)
        for change in resource.configs:
            _check_log_level(change)
    elif resource.resource_type not in (
        ResourceType.TOPIC,
        ResourceType.GROUP,
        ResourceType.CLIENT_METRICS,
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
