"""Topics, configs, offsets and the cluster through librdkafka's admin client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from brokerlab.clients import admin_client, create_topic, produce_values

pytestmark = pytest.mark.integration
WAIT_S = 30


def unique(prefix: str = "a") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def error_code(future: object) -> int:
    with pytest.raises(KafkaException) as raised:
        future.result(WAIT_S)  # type: ignore[attr-defined]
    code: int = raised.value.args[0].code()
    return code


def described_configs(bootstrap: str, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    found: dict[str, ConfigEntry] = (
        admin_client(bootstrap).describe_configs([resource])[resource].result(WAIT_S)
    )
    return found


def test_create_list_describe_delete(bootstrap: str) -> None:
    admin, name = admin_client(bootstrap), unique()
    create_topic(bootstrap, name, partitions=3)
    assert set(admin.list_topics(timeout=WAIT_S).topics[name].partitions) == {0, 1, 2}
    description = admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S)
    assert description.name == name
    assert not description.is_internal
    assert [p.id for p in description.partitions] == [0, 1, 2]
    for partition in description.partitions:
        assert [n.id for n in partition.replicas] == [partition.leader.id] == [n.id for n in partition.isr]
    assert str(description.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA")
    admin.delete_topics([name])[name].result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while name in admin.list_topics(timeout=WAIT_S).topics:
        assert time.monotonic() < deadline, "still listed"
        time.sleep(0.05)


def test_a_recreated_topic_is_empty_and_has_another_id(bootstrap: str) -> None:
    admin, name = admin_client(bootstrap), unique()
    create_topic(bootstrap, name)
    first_id = str(admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S).topic_id)
    produce_values(bootstrap, name, [b"old"] * 3)
    admin.delete_topics([name])[name].result(WAIT_S)
    create_topic(bootstrap, name)
    assert str(admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S).topic_id) != first_id
    assert [m.offset() for m in produce_values(bootstrap, name, [b"new"])] == [0]


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (lambda: NewTopic(unique(), 0, 1), KafkaError.INVALID_PARTITIONS),
        (lambda: NewTopic(unique(), 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
        (lambda: NewTopic("no spaces", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (lambda: NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (lambda: NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (lambda: NewTopic(unique(), 1, 1, config={"no.such.setting": "1"}), KafkaError.INVALID_CONFIG),
        (lambda: NewTopic(unique(), 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (lambda: NewTopic(unique(), 1, 1, config={"cleanup.policy": "burn"}), KafkaError.INVALID_CONFIG),
    ],
    ids=[
        "0-partitions",
        "too-many-replicas",
        "spaces",
        "too-long",
        "dots",
        "unknown-config",
        "bad-number",
        "bad-choice",
    ],
)
def test_impossible_topics(bootstrap: str, new: Callable[[], NewTopic], code: int) -> None:
    admin, topic = admin_client(bootstrap), new()
    assert error_code(admin.create_topics([topic])[topic.topic]) == code
    assert topic.topic not in admin.list_topics(timeout=WAIT_S).topics


def test_a_topic_cannot_be_created_twice_or_with_a_colliding_metric_name(bootstrap: str) -> None:
    admin, name = admin_client(bootstrap), unique("a.b")
    create_topic(bootstrap, name)
    assert error_code(admin.create_topics([NewTopic(name, 1, 1)])[name]) == KafkaError.TOPIC_ALREADY_EXISTS
    twin = name.replace(".", "_")
    assert error_code(admin.create_topics([NewTopic(twin, 1, 1)])[twin]) == KafkaError.TOPIC_EXCEPTION


def test_validate_only_creates_nothing(bootstrap: str) -> None:
    admin, name = admin_client(bootstrap), unique()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(WAIT_S)
    assert name not in admin.list_topics(timeout=WAIT_S).topics


def test_manual_assignment_and_broker_defaults(bootstrap: str) -> None:
    admin = admin_client(bootstrap)
    (broker,) = admin.list_topics(timeout=WAIT_S).brokers
    assigned, defaulted = unique(), unique()
    admin.create_topics([NewTopic(assigned, 2, replica_assignment=[[broker], [broker]])])[assigned].result(
        WAIT_S
    )
    admin.create_topics([NewTopic(defaulted)])[defaulted].result(WAIT_S)
    topics = admin.list_topics(timeout=WAIT_S).topics
    assert len(topics[assigned].partitions) == 2
    assert len(topics[defaulted].partitions) == 1


def test_delete_of_an_unknown_topic(bootstrap: str) -> None:
    name = unique()
    assert error_code(admin_client(bootstrap).delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_grow_and_never_shrink(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(WAIT_S)
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 4
    for count in (4, 2):
        code = error_code(admin.create_partitions([NewPartitions(topic, count)])[topic])
        assert code == KafkaError.INVALID_PARTITIONS
    unknown = unique()
    code = error_code(admin.create_partitions([NewPartitions(unknown, 4)])[unknown])
    assert code == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert [m.partition() for m in produce_values(bootstrap, topic, [b"x"], partition=3)] == [3]


def test_topic_configs_are_described_with_source_default_and_synonyms(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    name = new_topic(retention_ms=123456789)
    configs = described_configs(bootstrap, ResourceType.TOPIC, name)
    changed = configs["retention.ms"]
    assert (changed.value, ConfigSource(changed.source), changed.is_default) == (
        "123456789",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        False,
    )
    segment = configs["segment.bytes"]
    assert (segment.value, ConfigSource(segment.source)) == ("1073741824", ConfigSource.DEFAULT_CONFIG)
    assert "log.segment.bytes" in segment.synonyms
    assert configs["cleanup.policy"].value == "delete"
    assert configs["max.message.bytes"].value == "1048588"
    assert configs["compression.type"].value == "producer"
    assert {"index.interval.bytes", "message.timestamp.type", "min.insync.replicas", "segment.ms"} <= set(
        configs
    )


def test_broker_configs_are_described(bootstrap: str) -> None:
    (broker,) = admin_client(bootstrap).list_topics(timeout=WAIT_S).brokers
    configs = described_configs(bootstrap, ResourceType.BROKER, str(broker))
    assert configs["message.max.bytes"].value == "1048588"
    assert configs["socket.request.max.bytes"].value == "104857600"
    assert configs["socket.request.max.bytes"].is_read_only
    assert not configs["message.max.bytes"].is_read_only
    assert "log.dirs" in configs


def test_configs_of_unknown_things(bootstrap: str) -> None:
    admin = admin_client(bootstrap)
    missing = ConfigResource(ResourceType.TOPIC, unique())
    assert error_code(admin.describe_configs([missing])[missing]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_incremental_alter_sets_appends_subtracts_and_deletes(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def value_of(name: str) -> str | None:
        value: str | None = described_configs(bootstrap, ResourceType.TOPIC, topic)[name].value
        return value

    alter("retention.ms", "1000000", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert value_of("retention.ms") == "1000000"
    assert set((value_of("cleanup.policy") or "").split(",")) == {"delete", "compact"}
    alter("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    assert value_of("cleanup.policy") == "delete"
    assert value_of("retention.ms") == "1000000"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    assert value_of("retention.ms") != "1000000"


def test_incremental_alter_refuses_bad_values_and_validates_only(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)

    def resource(name: str, value: str) -> ConfigResource:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])

    bad = resource("retention.ms", "never")
    assert error_code(admin.incremental_alter_configs([bad])[bad]) == KafkaError.INVALID_CONFIG
    dry = resource("retention.ms", "777")
    admin.incremental_alter_configs([dry], validate_only=True)[dry].result(WAIT_S)
    assert described_configs(bootstrap, ResourceType.TOPIC, topic)["retention.ms"].value != "777"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_alter_configs_replaces_all_overrides(bootstrap: str, new_topic: Callable[..., str]) -> None:
    name = new_topic(retention_ms=5000000)
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"segment.ms": "6000000"})
    admin_client(bootstrap).alter_configs([resource])[resource].result(WAIT_S)
    configs = described_configs(bootstrap, ResourceType.TOPIC, name)
    assert configs["segment.ms"].value == "6000000"
    assert configs["retention.ms"].value != "5000000"


def test_delete_records(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)
    produce_values(bootstrap, topic, [b"%d" % i for i in range(10)])
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(WAIT_S).low_watermark == 4
    (low,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()}).values()
    assert low.result(WAIT_S).offset == 4
    beyond = TopicPartition(topic, 0, 11)
    assert error_code(admin.delete_records([beyond])[beyond]) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(WAIT_S).low_watermark == 10


def test_describe_cluster(bootstrap: str) -> None:
    cluster = admin_client(bootstrap).describe_cluster(include_authorized_operations=True).result(WAIT_S)
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id
    assert len(cluster.cluster_id) == 22


def test_elect_leaders_is_not_needed(bootstrap: str, topic: str) -> None:
    from confluent_kafka import ElectionType

    results = (
        admin_client(bootstrap)
        .elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)])
        .result(WAIT_S)
    )
    ((_, error),) = results.items()
    assert error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_scram_users_of_an_unsecured_cluster(bootstrap: str) -> None:
    assert admin_client(bootstrap).describe_user_scram_credentials().result(WAIT_S) == {}
