"""The offsets of share groups, and groups of brokers that do not know all types, with scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from brokerlab.scripted_broker import ScriptedBroker, served_apis
from tidelog.client.admin.groups import describe_group
from tidelog.client.admin.offsets import (
    ShareOffset,
    alter_share_offsets,
    delete_share_offsets,
    describe_share_offsets,
)
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import alter_share_group_offsets as altering
from tidelog.wire.messages import delete_share_group_offsets as deleting
from tidelog.wire.messages import describe_groups
from tidelog.wire.messages import describe_share_group_offsets as describing
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker

GROUP = "tasks"
Answer = Callable[[Any, int], Any]


@contextmanager
def coordinator(answers: dict[int, Answer]) -> Iterator[tuple[ScriptedBroker, Cluster]]:
    """Yields a broker that coordinates all groups, and its client."""

    def metadata(request: Any, version: int) -> MetadataResponse:
        return MetadataResponse(brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port)])

    def find(request: Any, version: int) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=[Coordinator(GROUP, 1, "127.0.0.1", broker.port)])

    broker = ScriptedBroker({ApiKey.METADATA: metadata, ApiKey.FIND_COORDINATOR: find, **answers})
    with broker, Cluster(broker.bootstrap, timeout_s=10) as cluster:
        yield broker, cluster


def test_a_group_without_progress_has_no_offset_and_no_lag() -> None:
    rows = [
        describing.DescribeShareGroupOffsetsResponsePartition(0, 7, lag=3),
        describing.DescribeShareGroupOffsetsResponsePartition(1, -1, lag=-1),
    ]
    topic = describing.DescribeShareGroupOffsetsResponseTopic("flights", partitions=rows)
    group = describing.DescribeShareGroupOffsetsResponseGroup(GROUP, [topic])
    answer = describing.DescribeShareGroupOffsetsResponse(groups=[group])
    with coordinator({ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda *_: answer}) as (broker, cluster):
        found = describe_share_offsets(cluster, GROUP)
        (request,) = broker.requests_of(describing.DescribeShareGroupOffsetsRequest)
    assert found == {
        TopicPartition("flights", 0): ShareOffset(7, 3),
        TopicPartition("flights", 1): ShareOffset(None, None),
    }
    assert request.groups[0].topics is None


def test_an_error_of_a_partition_is_raised() -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    described = describing.DescribeShareGroupOffsetsResponsePartition(4, -1, error_code=code)
    group = describing.DescribeShareGroupOffsetsResponseGroup(
        GROUP, [describing.DescribeShareGroupOffsetsResponseTopic("flights", partitions=[described])]
    )
    altered = altering.AlterShareGroupOffsetsResponsePartition(4, code)
    responses = [altering.AlterShareGroupOffsetsResponseTopic("flights", partitions=[altered])]
    answers: dict[int, Answer] = {
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda *_: describing.DescribeShareGroupOffsetsResponse(
            groups=[group]
        ),
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda *_: altering.AlterShareGroupOffsetsResponse(
            responses=responses
        ),
    }
    with coordinator(answers) as (_, cluster):
        with pytest.raises(KafkaError, match="group 'tasks', topic 'flights' partition 4: no ACL allows it"):
            describe_share_offsets(cluster, GROUP)
        with pytest.raises(KafkaError, match="group 'tasks', topic 'flights' partition 4: no ACL allows it"):
            alter_share_offsets(cluster, GROUP, {TopicPartition("flights", 4): 1})


def test_only_topics_that_could_not_be_deleted_yet_are_asked_for_again() -> None:
    asked: list[list[str]] = []

    def delete(request: Any, version: int) -> deleting.DeleteShareGroupOffsetsResponse:
        names = [topic.topic_name for topic in request.topics]
        asked.append(names)
        codes = {
            "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "slow": ErrorCode.COORDINATOR_NOT_AVAILABLE if len(asked) == 1 else ErrorCode.NONE,
        }
        return deleting.DeleteShareGroupOffsetsResponse(
            responses=[
                deleting.DeleteShareGroupOffsetsResponseTopic(
                    name, error_code=codes.get(name, ErrorCode.NONE)
                )
                for name in names
            ]
        )

    with coordinator({ApiKey.DELETE_SHARE_GROUP_OFFSETS: delete}) as (_, cluster):
        done = delete_share_offsets(cluster, GROUP, ["slow", "flights", "absent"])
    assert asked == [["absent", "flights", "slow"], ["slow"]]
    assert done == {
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "flights": ErrorCode.NONE,
        "slow": ErrorCode.NONE,
    }


def test_a_group_with_members_keeps_its_offsets() -> None:
    code = ErrorCode.NON_EMPTY_GROUP
    answers: dict[int, Answer] = {
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda *_: altering.AlterShareGroupOffsetsResponse(error_code=code),
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda *_: deleting.DeleteShareGroupOffsetsResponse(
            error_code=code
        ),
    }
    with coordinator(answers) as (_, cluster):
        with pytest.raises(KafkaError, match="group 'tasks' has members"):
            alter_share_offsets(cluster, GROUP, {TopicPartition("flights", 0): 1})
        with pytest.raises(KafkaError, match="group 'tasks' has members"):
            delete_share_offsets(cluster, GROUP, ["flights"])


def test_a_broker_that_knows_only_classic_groups_describes_them() -> None:
    """Kafka before 3.7 describes no other groups, and Kafka 4.0 share groups only with v0."""
    unknown = (ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_DESCRIBE)
    served = [row for row in served_apis() if row.api_key not in (*unknown, ApiKey.SHARE_GROUP_DESCRIBE)]
    served.append(ApiVersion(ApiKey.SHARE_GROUP_DESCRIBE, 0, 0))
    described = describe_groups.DescribedGroup(group_id=GROUP, group_state="Empty")
    answers: dict[int, Answer] = {
        ApiKey.API_VERSIONS: lambda *_: ApiVersionsResponse(0, served),
        ApiKey.DESCRIBE_GROUPS: lambda *_: describe_groups.DescribeGroupsResponse(groups=[described]),
    }
    with coordinator(answers) as (_, cluster):
        group = describe_group(cluster, GROUP)
    assert (group.group_type, group.state) == ("classic", "Empty")
