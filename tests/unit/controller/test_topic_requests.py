"""CreateTopics, DeleteTopics and CreatePartitions: every refusal of Kafka, and the written records."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Core
from tidelog.controller.core.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    create_partitions,
    create_topics,
    delete_topics,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

MakeCore = type[Core]


def _assigned(*replicas: list[int], indexes: list[int] | None = None) -> list[CreatableReplicaAssignment]:
    return [
        CreatableReplicaAssignment(index, brokers)
        for index, brokers in zip(indexes or range(len(replicas)), replicas, strict=True)
    ]


def _create(
    core: Core, *topics: CreatableTopic, validate_only: bool = False, version: int = 7
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(list(topics), validate_only=validate_only)
    return core.request(create_topics, request, version).topics


def test_a_topic_is_created_with_the_defaults(core: MakeCore) -> None:
    cluster = core([1, 2, 3], num_partitions="4", default_replication_factor="2")
    (result,) = _create(cluster, CreatableTopic("t", -1, -1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 2)
    topic = cluster.state.topics["t"]
    assert topic.topic_id == result.topic_id != ZERO_TOPIC_ID
    for index, replicas in enumerate(topic.assignments):
        state = cluster.partition("t", index)
        assert (state.leader, state.isr, state.leader_epoch) == (replicas[0], replicas, 0)
        assert len(set(replicas)) == 2


def test_configs_of_a_topic_are_stored(core: MakeCore) -> None:
    cluster = core()
    configs = [
        CreatableTopicConfig("retention.ms", "1000"),
        CreatableTopicConfig("cleanup.policy", "compact"),
    ]
    (result,) = _create(cluster, CreatableTopic("t", 1, 1, configs=configs))
    assert cluster.state.configs_of("t") == {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert result.error_code == 0


def test_the_partitions_of_a_cluster_are_limited(core: MakeCore) -> None:
    cluster = core([1, 2], **{"tidelog.max.partitions": "5"})
    results = _create(
        cluster, CreatableTopic("a", 3, 1), CreatableTopic("b", 3, 1), CreatableTopic("c", 2, 1)
    )
    assert [result.error_code for result in results] == [0, ErrorCode.POLICY_VIOLATION, 0]
    assert (
        results[1].error_message == "The cluster would have more than 5 partitions (tidelog.max.partitions)."
    )
    grow = CreatePartitionsRequest([CreatePartitionsTopic("a", 4, None)])
    (refused,) = cluster.request(create_partitions, grow, 3).results
    assert refused.error_code == ErrorCode.POLICY_VIOLATION


def test_the_partitions_of_a_broker_are_limited(core: MakeCore) -> None:
    cluster = core([1, 2], **{"tidelog.max.partitions.per.broker": "3"})
    on_broker_1 = CreatableTopic("a", -1, -1, _assigned([1], [1], [1]))
    assert [result.error_code for result in _create(cluster, on_broker_1)] == [0]
    (refused,) = _create(cluster, CreatableTopic("b", 1, 2))
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "Broker 1 would have more than 3 partitions" in str(refused.error_message)
    (other,) = _create(cluster, CreatableTopic("c", -1, -1, _assigned([2], [2])))
    assert other.error_code == 0


def test_validate_only_writes_nothing(core: MakeCore) -> None:
    cluster = core()
    (result,) = _create(cluster, CreatableTopic("t", 3, 1), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert not cluster.state.topics


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (CreatableTopic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("a/b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("x" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("old", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (CreatableTopic("dotted_name", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", MAX_PARTITIONS_PER_REQUEST + 1, 1), ErrorCode.POLICY_VIOLATION),
        (CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("no.such", "1")]), ErrorCode.INVALID_CONFIG),
        (
            CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("retention.ms", "x")]),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            CreatableTopic("t", 1, 1, configs=[CreatableTopicConfig("retention.ms", None)]),
            ErrorCode.INVALID_CONFIG,
        ),
        (CreatableTopic("t", -1, 1, _assigned([1])), ErrorCode.INVALID_REQUEST),
        (CreatableTopic("t", 1, -1, _assigned([1])), ErrorCode.INVALID_REQUEST),
        (CreatableTopic("t", -1, -1, _assigned([])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", -1, -1, _assigned([1, 1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", -1, -1, _assigned([9])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", -1, -1, _assigned([1, 2], [3])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            CreatableTopic("t", -1, -1, _assigned([1], [2], indexes=[0, 2])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatableTopic("t", -1, -1, _assigned([1], [2], indexes=[0, 0])),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_refused_topics(core: MakeCore, topic: CreatableTopic, code: ErrorCode) -> None:
    cluster = core([1, 2, 3])
    _create(cluster, CreatableTopic("old", 1, 1), CreatableTopic("dotted.name", 1, 1))
    before = dict(cluster.state.topics)
    result, other = _create(cluster, topic, CreatableTopic("other", 1, 1))
    assert result.error_code == code
    assert result.error_message
    assert other.error_code == 0
    assert cluster.state.topics.keys() == before.keys() | {"other"}


def test_a_duplicate_name_is_refused_with_one_result(core: MakeCore) -> None:
    cluster = core()
    results = _create(cluster, *(CreatableTopic(name, 1, 1) for name in ("a", "b", "a")))
    assert [(r.name, r.error_code) for r in results] == [("a", ErrorCode.INVALID_REQUEST), ("b", 0)]


def test_colliding_names_in_one_request(core: MakeCore) -> None:
    cluster = core()
    results = _create(cluster, CreatableTopic("a.b", 1, 1), CreatableTopic("a_b", 1, 1))
    assert [r.error_code for r in results] == [0, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_manual_assignment(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    (result,) = _create(cluster, CreatableTopic("t", -1, -1, _assigned([1, 3], [2, 1], indexes=[1, 0])))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 2)
    assert cluster.state.topics["t"].assignments == ((2, 1), (1, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.data())
def test_placement_is_even(core: MakeCore, brokers: int, partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    cluster = core(range(brokers))
    _create(cluster, CreatableTopic("t", partitions, factor))
    assignments = cluster.state.topics["t"].assignments
    leaders = [replicas[0] for replicas in assignments]
    counts = [leaders.count(broker) for broker in range(brokers)]
    assert max(counts) - min(counts) <= 1
    assert all(len(set(replicas)) == factor for replicas in assignments)


def test_delete_by_name_and_by_id(core: MakeCore) -> None:
    cluster = core()
    made = _create(cluster, *(CreatableTopic(name, 2, 1) for name in ("a", "b", "c")))
    reply = cluster.request(delete_topics, DeleteTopicsRequest(topic_names=["a", "nope"]), 5)
    assert [r.error_code for r in reply.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    wanted = [
        DeleteTopicState(None, made[1].topic_id),
        DeleteTopicState(None, uuid.uuid4()),
        DeleteTopicState("c", made[2].topic_id),
        DeleteTopicState(None, ZERO_TOPIC_ID),
    ]
    reply = cluster.request(delete_topics, DeleteTopicsRequest(topics=wanted), 6)
    assert [r.error_code for r in reply.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert reply.responses[0].name == "b"
    assert list(cluster.state.topics) == ["c"]
    assert list(cluster.state.partitions) == ["c"]


def test_delete_twice_in_one_request(core: MakeCore) -> None:
    cluster = core()
    (made,) = _create(cluster, CreatableTopic("a", 1, 1))
    wanted = [DeleteTopicState("a"), DeleteTopicState(None, made.topic_id)]
    reply = cluster.request(delete_topics, DeleteTopicsRequest(topics=wanted), 6)
    assert [r.error_code for r in reply.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert "a" in cluster.state.topics
    unknown = DeleteTopicsRequest(topics=[DeleteTopicState("b"), DeleteTopicState("b")])
    (once,) = cluster.request(delete_topics, unknown, 6).responses
    assert once.error_code == ErrorCode.INVALID_REQUEST


def test_delete_disabled(core: MakeCore) -> None:
    cluster = core(delete_topic_enable="false")
    _create(cluster, CreatableTopic("a", 1, 1))
    with pytest.raises(KafkaError) as raised:
        cluster.request(delete_topics, DeleteTopicsRequest(topics=[DeleteTopicState("a")]), 6)
    assert raised.value.code is ErrorCode.TOPIC_DELETION_DISABLED


def test_partitions_are_added(core: MakeCore) -> None:
    cluster = core([1, 2])
    _create(cluster, CreatableTopic("t", 2, 2))
    before = cluster.state.topics["t"].assignments
    request = CreatePartitionsRequest(
        [
            CreatePartitionsTopic("t", 4, None),
            CreatePartitionsTopic("none", 4, None),
        ]
    )
    reply = cluster.request(create_partitions, request)
    assert [r.error_code for r in reply.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    after = cluster.state.topics["t"].assignments
    assert after[:2] == before
    assert len(after) == 4
    assert cluster.partition("t", 3).leader == after[3][0]


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (20_000, None, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_refused_requests_for_partitions(
    core: MakeCore, count: int, assignments: list[list[int]] | None, code: ErrorCode
) -> None:
    cluster = core([1, 2])
    _create(cluster, CreatableTopic("t", 2, 1))
    wanted = None if assignments is None else [CreatePartitionsAssignment(a) for a in assignments]
    request = CreatePartitionsRequest([CreatePartitionsTopic("t", count, wanted)])
    (result,) = cluster.request(create_partitions, request).results
    assert result.error_code == code
    assert result.error_message
    assert len(cluster.state.topics["t"].assignments) == 2
