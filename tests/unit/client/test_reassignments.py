"""Moves of replicas, elections, a setting of many topics, and the metadata of one broker."""

from __future__ import annotations

from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker
from tidelog.client.admin.reassignments import (
    Reassignment,
    alter_reassignments,
    elect_preferred_leaders,
    list_reassignments,
    standing_of,
)
from tidelog.client.admin.topics import describe_topics_setting
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.wire.messages.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def answering(**answers: Any) -> ScriptedBroker:
    """A broker with id 1 and these responses, by the API's name."""
    brokers: list[MetadataResponseBroker] = []
    scripted = {
        ApiKey[name]: lambda request, version, answer=answer: answer for name, answer in answers.items()
    }
    metadata = MetadataResponse(brokers=brokers, controller_id=1)
    broker = ScriptedBroker({ApiKey.METADATA: lambda request, version: metadata, **scripted})
    brokers.append(MetadataResponseBroker(1, "127.0.0.1", broker.port))
    return broker


def reassigned(*codes: int) -> AlterPartitionReassignmentsResponse:
    rows = [ReassignablePartitionResponse(index, code, None) for index, code in enumerate(codes)]
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=[ReassignableTopicResponse("t", rows)]
    )


def test_moves_are_requested_topic_by_topic() -> None:
    with (
        answering(ALTER_PARTITION_REASSIGNMENTS=reassigned(0, 0)) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        alter_reassignments(cluster, {("t", 0): (1, 2), ("u", 3): None, ("t", 1): (2, 1)})
        (request,) = broker.requests_of(AlterPartitionReassignmentsRequest)
    asked = {
        topic.name: [(p.partition_index, p.replicas) for p in topic.partitions] for topic in request.topics
    }
    assert asked == {"t": [(0, [1, 2]), (1, [2, 1])], "u": [(3, None)]}


def test_a_refused_move_is_raised() -> None:
    answer = reassigned(ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    with (
        answering(ALTER_PARTITION_REASSIGNMENTS=answer) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(KafkaError, match="topic 't' partition 1"),
    ):
        alter_reassignments(cluster, {("t", 0): (1,), ("t", 1): (9,)})


def test_cancelling_a_finished_move_is_not_an_error() -> None:
    answer = reassigned(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    with answering(ALTER_PARTITION_REASSIGNMENTS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        alter_reassignments(cluster, {("t", 0): None})


def test_running_moves() -> None:
    topics = [OngoingTopicReassignment("t", [OngoingPartitionReassignment(2, [3, 1], [3], [1])])]
    answer = ListPartitionReassignmentsResponse(error_message=None, topics=topics)
    with answering(LIST_PARTITION_REASSIGNMENTS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        assert list_reassignments(cluster) == {("t", 2): Reassignment((3, 1), (3,), (1,))}


def test_a_move_that_ends_between_the_requests_counts_as_finished() -> None:
    brokers: list[MetadataResponseBroker] = []
    moving = [OngoingTopicReassignment("t", [OngoingPartitionReassignment(0, [3, 1], [3], [1])])]
    replicas = [3, 1]

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        seen = [MetadataResponsePartition(0, 0, 1, 0, list(replicas), [1], [])]
        if request.topics != []:
            end_move()
        return MetadataResponse(
            brokers=brokers, controller_id=1, topics=[MetadataResponseTopic(0, "t", partitions=seen)]
        )

    def listed(request: Any, version: int) -> ListPartitionReassignmentsResponse:
        answer = ListPartitionReassignmentsResponse(error_message=None, topics=list(moving))
        end_move()
        return answer

    def end_move() -> None:
        moving.clear()
        replicas[:] = [3]

    answers = {ApiKey.METADATA: metadata, ApiKey.LIST_PARTITION_REASSIGNMENTS: listed}
    with ScriptedBroker(answers) as broker:
        brokers.append(MetadataResponseBroker(1, "127.0.0.1", broker.port))
        with Cluster(broker.bootstrap) as cluster:
            assert standing_of(cluster).assignment == {("t", 0): (3,)}


def test_unnecessary_elections_do_not_count() -> None:
    codes = ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    rows = [PartitionResult(index, code, None) for index, code in enumerate(codes)]
    answer = ElectLeadersResponse(replica_election_results=[ReplicaElectionResult("t", rows)])
    with answering(ELECT_LEADERS=answer) as broker, Cluster(broker.bootstrap) as cluster:
        assert elect_preferred_leaders(cluster) == 1


def test_a_setting_of_many_topics_omits_deleted_topics() -> None:
    def configs(request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponse:
        rows = [DescribeConfigsResourceResult("min.insync.replicas", "2")]
        results = [
            DescribeConfigsResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, 2, asked.resource_name)
            if asked.resource_name == "t007"
            else DescribeConfigsResult(0, None, 2, asked.resource_name, rows)
            for asked in request.resources
        ]
        return DescribeConfigsResponse(results=results)

    with ScriptedBroker({ApiKey.DESCRIBE_CONFIGS: configs}) as broker, Cluster(broker.bootstrap) as cluster:
        found = describe_topics_setting(
            cluster, [f"t{index:03}" for index in range(1_200)], "min.insync.replicas"
        )
        assert len(found) == 1_199
        assert set(found.values()) == {"2"}
        assert len(broker.requests_of(DescribeConfigsRequest)) == 3


def test_metadata_as_one_broker_sees_it() -> None:
    brokers: list[MetadataResponseBroker] = []

    def knowing(*names: str) -> ScriptedBroker:
        answer = MetadataResponse(brokers=brokers, topics=[MetadataResponseTopic(0, name) for name in names])
        return ScriptedBroker({ApiKey.METADATA: lambda request, version: answer})

    with knowing("old") as first, knowing("old", "new") as second:
        brokers += [MetadataResponseBroker(i, "127.0.0.1", b.port) for i, b in enumerate((first, second))]
        with Cluster(first.bootstrap) as cluster:
            assert list(cluster.topics(seen_by=0)) == ["old"]
            assert list(cluster.topics(seen_by=1)) == ["new", "old"]
