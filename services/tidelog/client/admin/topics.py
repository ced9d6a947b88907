"""Topics, their partitions and offsets, and the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster import BrokerConnection, Cluster
from tidelog.client.core.cluster_view import in_parts
from tidelog.client.errors import (
    LeaderNotAvailableError,
    UnknownTopicError,
    raise_on_error,
    raise_on_topic_error,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import NO_LEADER, ConfigOperation, ConfigResourceType
from tidelog.model.topics import NOT_CONFIRMED, SETTINGS_CONFIRMED, TopicPartition
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
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

BROKER_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic. A number is -1 if the broker does not return it (before CreateTopics version 5)."""

    name: str
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The result for a partition. `low_watermark` is its new earliest offset, or -1 after an error."""

    low_watermark: int
    error: ErrorCode


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    num_partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    assignment: Mapping[int, list[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> CreatedTopic:
    """Creates a topic.

    `assignment` replaces the two numbers. It maps each partition to its brokers, the preferred leader first.
    Raises KafkaError (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, ...), ClientError.
    """
    topic = CreatableTopic(
        name,
        BROKER_DEFAULT if assignment else num_partitions,
        BROKER_DEFAULT if assignment else replication_factor,
        [CreatableReplicaAssignment(index, ids) for index, ids in sorted((assignment or {}).items())],
        [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest([topic], cluster.timeout_ms, validate_only)
    uses_defaults = not assignment and BROKER_DEFAULT in (num_partitions, replication_factor)
    answer = cluster.controller().call(
        request, CreateTopicsResponse, at_least=4 if uses_defaults else 1, wait_ms=cluster.timeout_ms
    )
    result = answer.topics[0]
    raise_on_topic_error(result.error_code, name, result.error_message)
    return CreatedTopic(name, result.num_partitions, result.replication_factor)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Deletes a topic.

    Raises KafkaError (UNKNOWN_TOPIC_OR_PARTITION, TOPIC_DELETION_DISABLED, ...), ClientError.
    """
    request = DeleteTopicsRequest([DeleteTopicState(name)], [name], cluster.timeout_ms)
    answer = cluster.controller().call(request, DeleteTopicsResponse, wait_ms=cluster.timeout_ms)
    result = answer.responses[0]
    raise_on_topic_error(result.error_code, name, result.error_message)


def create_partitions(cluster: Cluster, name: str, total_count: int) -> None:
    """Increases the number of partitions to `total_count`.

    Raises KafkaError (INVALID_PARTITIONS, ...), ClientError.
    """
    request = CreatePartitionsRequest([CreatePartitionsTopic(name, total_count, None)], cluster.timeout_ms)
    answer = cluster.controller().call(request, CreatePartitionsResponse, wait_ms=cluster.timeout_ms)
    result = answer.results[0]
    raise_on_topic_error(result.error_code, name, result.error_message)


def places_by_leader(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Returns the partitions of each leader, sorted and without repetitions.

    Raises KafkaError if a partition does not exist or has no leader, ClientError.
    """
    wanted = sorted(set(places))
    topics = cluster.topics(sorted({place.topic for place in wanted}))
    leaders = {
        TopicPartition(topic.name, partition.index): partition.leader
        for topic in topics.values()
        for partition in topic.partitions
    }
    found: dict[int, list[TopicPartition]] = {}
    for place in wanted:
        if place not in leaders:
            raise UnknownTopicError(f"partition {place} does not exist")
        if leaders[place] == NO_LEADER:
            raise LeaderNotAvailableError(f"partition {place} has no leader")
        found.setdefault(leaders[place], []).append(place)
    return found


def delete_records(
    cluster: Cluster, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, DeletedRecords]:
    """Deletes the records below an offset of each partition; UP_TO_HIGH_WATERMARK deletes all.

    Partitions are independent, so each has its own result. Raises KafkaError if a partition does not exist
    or has no leader, ClientError.
    """
    found: dict[TopicPartition, DeletedRecords] = {}
    parts = [
        (leader, part)
        for leader, of_leader in places_by_leader(cluster, offsets).items()
        for part in in_parts(of_leader)
    ]
    for leader, part in parts:
        rows: dict[str, list[DeleteRecordsPartition]] = {}
        for place in part:
            rows.setdefault(place.topic, []).append(DeleteRecordsPartition(place.partition, offsets[place]))
        asked = [DeleteRecordsTopic(name, partitions) for name, partitions in rows.items()]
        request = DeleteRecordsRequest(asked, cluster.timeout_ms)
        answer = cluster.broker(leader).call(request, DeleteRecordsResponse, wait_ms=cluster.timeout_ms)
        for topic in answer.topics:
            for row in topic.partitions:
                found[TopicPartition(topic.name, row.partition_index)] = DeletedRecords(
                    row.low_watermark, ErrorCode(row.error_code)
                )
    return found


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

    resource_type: ConfigResourceType
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


def describe_topics_settings(
    cluster: Cluster, topics: Iterable[str], names: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    """Returns the effective values of some settings for many topics, without deleted topics.

    Raises KafkaError, ClientError.
    """
    found: dict[str, dict[str, str | None]] = {}
    for part in in_parts(sorted(topics)):
        asked = [DescribeConfigsResource(int(ConfigResourceType.TOPIC), topic, list(names)) for topic in part]
        answer = cluster.any_broker().call(DescribeConfigsRequest(asked), DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise_on_error(result.error_code, f"topic '{result.resource_name}'", result.error_message)
            found[result.resource_name] = {row.name: row.value for row in result.configs}
    return found


def describe_topics_setting(cluster: Cluster, topics: Iterable[str], name: str) -> dict[str, str | None]:
    """Returns the effective value of one setting, as `describe_topics_settings` does."""
    found = describe_topics_settings(cluster, topics, [name])
    return {topic: values.get(name) for topic, values in found.items()}


def unconfirmed_topics(cluster: Cluster, topics: Collection[str]) -> list[str]:
    """Returns the topics whose settings were lost and are not confirmed yet, sorted.

    Raises KafkaError, ClientError.
    """
    values = describe_topics_setting(cluster, topics, SETTINGS_CONFIRMED)
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
    if resource.resource_type is ConfigResourceType.BROKER and resource.name:
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
