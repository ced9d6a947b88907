from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerlab.in_memory_broker import OTHER_BROKER_ID, InMemoryBroker
from tidelog.broker.cluster.view import MetadataView
from tidelog.broker.security.judging import TOPIC_OPERATIONS
from tidelog.model.errors import ErrorCode
from tidelog.rpc.broker_commands import DeletedTopic, TopicState, UpdateMetadata
from tidelog.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)


def describe(
    lab: InMemoryBroker, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
    response: DescribeTopicPartitionsResponse = lab.call(request, 0)
    return response


def found(response: DescribeTopicPartitionsResponse) -> dict[str | None, list[int]]:
    return {topic.name: [p.partition_index for p in topic.partitions] for topic in response.topics}


def test_a_topic(lab: InMemoryBroker) -> None:
    topic_id = lab.add_topic("t", 2)
    (topic,) = describe(lab, "t", "t").topics
    assert (topic.error_code, topic.topic_id, topic.is_internal) == (0, topic_id, False)
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS == 3576
    partition = topic.partitions[1]
    assert (partition.partition_index, partition.leader_id, partition.leader_epoch) == (1, 1, 3)
    assert (partition.replica_nodes, partition.isr_nodes) == ([1], [1])
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == (
        [],
        [],
        [],
    )


def test_a_partition_without_a_leader(lab: InMemoryBroker) -> None:
    lab.add_topic("t", leader=OTHER_BROKER_ID)
    lab.broker.metadata.brokers.pop(OTHER_BROKER_ID)
    ((partition,),) = (topic.partitions for topic in describe(lab, "t").topics)
    assert (partition.leader_id, partition.offline_replicas) == (-1, [OTHER_BROKER_ID])


def test_names_without_a_topic(lab: InMemoryBroker) -> None:
    codes = {topic.name: topic.error_code for topic in describe(lab, "none", "b@d", "").topics}
    assert codes == {
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "b@d": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("cursor", [Cursor("b", 0), Cursor("a", -1)])
def test_invalid_cursors(lab: InMemoryBroker, cursor: Cursor) -> None:
    lab.add_topic("a")
    (topic,) = describe(lab, "a", cursor=cursor).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST


class CountedTopics(dict[str, Any]):
    walks = 0

    def __iter__(self) -> Iterator[str]:
        self.walks += 1
        return super().__iter__()


def test_the_topics_are_sorted_once_for_all_pages(lab: InMemoryBroker) -> None:
    for name in "dbac":
        lab.add_topic(name)
    topics = lab.broker.metadata.topics = CountedTopics(lab.broker.metadata.topics)
    cursor, pages = None, []
    for _ in range(4):
        response = describe(lab, limit=1, cursor=cursor)
        pages += [topic.name for topic in response.topics]
        cursor = response.next_cursor
    assert (pages, topics.walks) == (["a", "b", "c", "d"], 1)
    lab.add_topic("bb")
    lab.add_topic("a")
    assert list(found(describe(lab))) == ["a", "b", "bb", "c", "d"]
    assert topics.walks == 1


@given(
    st.lists(
        st.tuples(
            st.sets(st.tuples(st.sampled_from("abcde"), st.integers(1, 2))),
            st.sets(st.tuples(st.sampled_from("abcde"), st.integers(1, 2))),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_the_sorted_names_are_those_of_the_topics(
    updates: list[tuple[set[tuple[str, int]], set[tuple[str, int]], bool]],
) -> None:
    view = MetadataView("cluster")
    for changed, deleted, is_full in updates:
        update = UpdateMetadata(
            1,
            1,
            (),
            topics=tuple(TopicState(name, uuid.UUID(int=number), (), {}) for name, number in changed),
            deleted_topics=tuple(DeletedTopic(name, uuid.UUID(int=number)) for name, number in deleted),
            is_full=is_full,
        )
        view.apply(update)
        assert list(view.sorted_topics()) == sorted(view.topics)


def test_a_cursor_behind_the_last_partition(lab: InMemoryBroker) -> None:
    lab.add_topic("a", 3)
    response = describe(lab, "a", cursor=Cursor("a", 7))
    assert found(response) == {"a": []}
    assert response.next_cursor is None


def test_the_brokers_limit_holds_and_one_partition_is_always_returned(
    make_broker: Callable[..., InMemoryBroker],
) -> None:
    lab = make_broker({"max.request.partition.size.limit": "2"})
    lab.add_topic("a", 3)
    assert found(describe(lab, "a")) == {"a": [0, 1]}
    assert found(describe(lab, "a", limit=0)) == {"a": [0]}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(1, 9), named=st.sets(st.sampled_from(["a", "b", "c", "unknown"])))
def test_all_pages_together_contain_each_partition_once(
    lab: InMemoryBroker, limit: int, named: set[str]
) -> None:
    for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
        if name not in lab.broker.metadata.topics:
            lab.add_topic(name, partitions)
    cursor, pages, told = None, 0, []
    while True:
        response = describe(lab, *named, limit=limit, cursor=cursor)
        page = [(topic.name, p.partition_index) for topic in response.topics for p in topic.partitions]
        assert len(page) <= limit
        told += page
        pages += 1
        cursor = response.next_cursor
        if cursor is None:
            break
    wanted = named or {"a", "b", "c"}
    counts = {"a": 3, "b": 1, "c": 4}
    assert told == [(name, index) for name in sorted(wanted) for index in range(counts.get(name, 0))]
    assert pages <= len(told) // limit + 1
