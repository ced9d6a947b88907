"""Reads and changes the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tidelog.client.answers import raise_on_error
from tidelog.client.cluster import Cluster
from tidelog.client.connection import BrokerConnection
from tidelog.client.core.request_parts import in_parts
from tidelog.model.errors import ErrorCode
from tidelog.settings.topic_settings import NOT_CONFIRMED, SETTINGS_CONFIRMED
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ResourceType(IntEnum):
    """The types of resources with settings, numbered as in Kafka's ConfigResource."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


CONFIG_SOURCES: Final[Mapping[int, str]] = {
    0: "UNKNOWN",
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
DYNAMIC_SOURCES: Final = frozenset({1, 2, 3, 6, 7, 8})
_SYNONYMS_SINCE: Final = 1


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic, broker or group. A broker's name is its id, or empty for the defaults of all brokers."""

    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.resource_type.name.lower()
        return f"{kind} '{self.name}'" if self.name else f"defaults of all {kind}s"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting. `value` is None if it is secret. `source` is a key of CONFIG_SOURCES."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[tuple[str, str | None, int], ...]

    @property
    def is_dynamic(self) -> bool:
        """Whether the setting was changed at run time for this resource or for all brokers."""
        return self.source in DYNAMIC_SOURCES


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: ConfigOperation
    value: str | None = None


def describe_configs(
    cluster: Cluster, resource: ConfigResource, names: list[str] | None = None
) -> list[ConfigEntry]:
    """Returns settings in the order of their names. Raises KafkaError, ClientError.

    `names` None means all settings.
    """
    asked = DescribeConfigsResource(int(resource.resource_type), resource.name, names)
    request = DescribeConfigsRequest([asked], include_synonyms=True)
    connection = _connection_for(cluster, resource)
    answer = connection.call(request, DescribeConfigsResponse, at_least=_SYNONYMS_SINCE)
    result = answer.results[0]
    raise_on_error(result.error_code, str(resource), result.error_message)
    return sorted((_entry_of(row) for row in result.configs), key=lambda entry: entry.name)


def describe_topics_setting(cluster: Cluster, topics: Iterable[str], name: str) -> dict[str, str | None]:
    """Returns the effective value of one setting for many topics, without deleted topics.

    Raises KafkaError, ClientError.
    """
    wanted = sorted(topics)
    found: dict[str, str | None] = {}
    for part in in_parts(wanted):
        asked = [DescribeConfigsResource(int(ResourceType.TOPIC), topic, [name]) for topic in part]
        answer = cluster.any_broker().call(DescribeConfigsRequest(asked), DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise_on_error(result.error_code, f"topic '{result.resource_name}'", result.error_message)
            found[result.resource_name] = next((row.value for row in result.configs), None)
    return found


def unconfirmed_topics(cluster: Cluster, topics: Collection[str]) -> list[str]:
    """Returns the topics whose settings were lost and are not confirmed yet, sorted.

    Raises KafkaError, ClientError.
    """
    values = describe_topics_setting(cluster, topics, SETTINGS_CONFIRMED) if topics else {}
    return sorted(topic for topic, value in values.items() if value == NOT_CONFIRMED[SETTINGS_CONFIRMED])


def alter_configs(
    cluster: Cluster, resource: ConfigResource, changes: list[ConfigChange], *, validate_only: bool = False
) -> None:
    """Makes all changes or none. Raises KafkaError, ClientError."""
    rows = [AlterableConfig(change.name, int(change.operation), change.value) for change in changes]
    asked = AlterConfigsResource(int(resource.resource_type), resource.name, rows)
    request = IncrementalAlterConfigsRequest([asked], validate_only)
    connection = _connection_for(cluster, resource)
    answer = connection.call(request, IncrementalAlterConfigsResponse).responses[0]
    raise_on_error(answer.error_code, str(resource), answer.error_message)


def _connection_for(cluster: Cluster, resource: ConfigResource) -> BrokerConnection:
    """Returns a connection to the broker itself for its own settings, because only that broker knows them."""
    if resource.resource_type is ResourceType.BROKER and resource.name:
        return cluster.broker(int(resource.name))
    return cluster.any_broker()


def _entry_of(row: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        row.name,
        row.value,
        row.config_source,
        row.read_only,
        row.is_sensitive,
        tuple((synonym.name, synonym.value, synonym.source) for synonym in row.synonyms),
    )
