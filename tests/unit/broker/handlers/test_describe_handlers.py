"""The small Describe handlers: cluster, disks, producers and config resources."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import BROKER_ID, CLUSTER_ID, OTHER_BROKER_ID, InMemoryBroker
from tidelog.broker.handlers import transactions as describe_producers_handler
from tidelog.broker.security.judging import CLUSTER_OPERATIONS, NOT_ASKED
from tidelog.kernel import slices
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ConfigResourceType
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import (
    alter_replica_log_dirs,
    describe_cluster,
    describe_log_dirs,
    describe_producers,
    list_config_resources,
)


def test_the_cluster_on_the_clients_own_listener(lab: InMemoryBroker) -> None:
    response = lab.call(describe_cluster.DescribeClusterRequest(), 2)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, CLUSTER_ID, BROKER_ID)
    assert [(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in response.brokers] == [
        (BROKER_ID, "127.0.0.1", 9092, "rack1", False),
        (OTHER_BROKER_ID, "127.0.0.1", 9092, None, False),
    ]
    assert response.cluster_authorized_operations == NOT_ASKED
    (only,) = lab.call(describe_cluster.DescribeClusterRequest(), 0, listener_name="INTERNAL").brokers
    assert (only.broker_id, only.port) == (BROKER_ID, 9093)


def test_authorized_operations_of_the_cluster(lab: InMemoryBroker) -> None:
    request = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert lab.call(request, 0).cluster_authorized_operations == CLUSTER_OPERATIONS == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_only_broker_endpoints_are_served(lab: InMemoryBroker, endpoint_type: int, code: ErrorCode) -> None:
    response = lab.call(describe_cluster.DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert (response.error_code, response.brokers) == (code, [])


def log_dir(lab: InMemoryBroker, topics: list[tuple[str, list[int]]] | None, version: int = 5) -> Any:
    asked = None if topics is None else [describe_log_dirs.DescribableLogDirTopic(*topic) for topic in topics]
    response = lab.call(describe_log_dirs.DescribeLogDirsRequest(asked), version)
    (directory,) = response.results
    assert (response.error_code, directory.error_code) == (0, 0)
    assert directory.log_dir == str(lab.broker.log_directory.path)
    return directory


def sizes(directory: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_size for t in directory.topics for p in t.partitions}


def test_sizes_of_partitions_and_of_the_disk(lab: InMemoryBroker) -> None:
    lab.add_topic("a", 2)
    lab.add_topic("b")
    lab.append("a", 10, partition=1)
    size = lab.broker.hosted.leader_replica("a", 1).log.size_bytes
    assert size > 0
    directory = log_dir(lab, None)
    assert sizes(directory) == {("a", 0): 0, ("a", 1): size, ("b", 0): 0}
    assert 0 < directory.usable_bytes <= directory.total_bytes
    assert sizes(log_dir(lab, [("a", [1, 9]), ("none", [0])], version=1)) == {("a", 1): size}
    assert sizes(log_dir(lab, [])) == {}


def test_replicas_stay_where_they_are(lab: InMemoryBroker) -> None:
    lab.add_topic("t")

    def move(path: str) -> list[int]:
        topic = alter_replica_log_dirs.AlterReplicaLogDirTopic("t", [0, 9])
        request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
            [alter_replica_log_dirs.AlterReplicaLogDir(path, [topic])]
        )
        (result,) = lab.call(request, 2).results
        return [partition.error_code for partition in result.partitions]

    assert move("/elsewhere") == [ErrorCode.LOG_DIR_NOT_FOUND] * 2
    assert move(str(lab.broker.log_directory.path)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_broker_without_a_replica_has_nothing_to_move(lab: InMemoryBroker) -> None:
    lab.add_topic("elsewhere", leader=OTHER_BROKER_ID)
    topic = alter_replica_log_dirs.AlterReplicaLogDirTopic("elsewhere", [0])
    move = alter_replica_log_dirs.AlterReplicaLogDir(str(lab.broker.log_directory.path), [topic])
    (result,) = lab.call(alter_replica_log_dirs.AlterReplicaLogDirsRequest([move]), 2).results
    assert [part.error_code for part in result.partitions] == [ErrorCode.REPLICA_NOT_AVAILABLE]


def test_producers_of_a_partition(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.append("t", 3, producer_id=77, producer_epoch=2, base_sequence=0)
    lab.append("t")
    asked = [
        describe_producers.TopicRequest("t", [0, 9]),
        describe_producers.TopicRequest("none", [0]),
        describe_producers.TopicRequest("b@d", [0]),
    ]
    response = lab.call(describe_producers.DescribeProducersRequest(asked), 0)
    here, missing, unknown, illegal = (part for topic in response.topics for part in topic.partitions)
    (producer,) = here.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 2, 2)
    assert (producer.last_timestamp, producer.coordinator_epoch) == (lab.clock.wall_ms(), -1)
    assert producer.current_txn_start_offset == -1
    assert missing.error_code == unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_partition_that_is_named_repeatedly_is_described_once(lab: InMemoryBroker) -> None:
    lab.add_topic("t", 2)
    asked = [describe_producers.TopicRequest("t", indexes) for indexes in ([1, 0, 1], [0, 1])]
    (topic,) = lab.call(describe_producers.DescribeProducersRequest(asked), 0).topics
    assert (topic.name, [part.partition_index for part in topic.partitions]) == ("t", [1, 0])


def test_an_answer_describes_a_limited_number_of_producers(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_producers_handler, "MAX_PRODUCERS_IN_ANSWER", 2)
    lab.add_topic("t", 4)
    for partition, producer_ids in enumerate([(), (1, 2, 3), (4,), ()]):
        for producer_id in producer_ids:
            lab.append("t", partition=partition, producer_id=producer_id, producer_epoch=0, base_sequence=0)

    def described(*indexes: int) -> list[tuple[int, int]]:
        asked = describe_producers.TopicRequest("t", list(indexes))
        (topic,) = lab.call(describe_producers.DescribeProducersRequest([asked]), 0).topics
        return [(part.error_code, len(part.active_producers)) for part in topic.partitions]

    ask_again = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert described(0, 1, 2, 3) == [(0, 0), (0, 3), (ask_again, 0), (ask_again, 0)]
    assert described(2, 3) == [(0, 1), (0, 0)]


def test_producers_are_described_in_slices(lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_MS", 0)
    lab.add_topic("t")
    for producer_id in range(2 * slices.STEPS_BETWEEN_READINGS):
        lab.append("t", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    request = describe_producers.DescribeProducersRequest([describe_producers.TopicRequest("t", [0])])
    answer = lab.handle(ApiKey.DESCRIBE_PRODUCERS, request, cast("Any", None))
    assert asyncio.iscoroutine(answer)
    (part,) = lab.runner.run(answer).topics[0].partitions
    assert len(part.active_producers) == 2 * slices.STEPS_BETWEEN_READINGS


def test_resources_that_have_settings(lab: InMemoryBroker) -> None:
    lab.add_topic("t")

    def listed(*types: int, version: int = 1) -> set[tuple[str, int]]:
        response = lab.call(list_config_resources.ListConfigResourcesRequest(list(types)), version)
        assert response.error_code == 0
        return {(resource.resource_name, resource.resource_type) for resource in response.config_resources}

    brokers = {(str(broker_id), ConfigResourceType.BROKER) for broker_id in (BROKER_ID, OTHER_BROKER_ID)}
    loggers = {(name, ConfigResourceType.BROKER_LOGGER) for name, _ in brokers}
    assert listed() == {("t", ConfigResourceType.TOPIC)} | brokers | loggers
    assert listed(ConfigResourceType.TOPIC, ConfigResourceType.GROUP) == {("t", ConfigResourceType.TOPIC)}
    assert listed(version=0) == set()
    refused = lab.call(list_config_resources.ListConfigResourcesRequest([0]), 1)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
