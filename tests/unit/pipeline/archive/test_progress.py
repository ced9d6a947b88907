"""The driver reads leader epochs from a real broker and commits a group's offsets to it, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import new_consumer, poll_messages, produce_values
from tidelog.client.admin.groups import CommittedOffset, committed_offsets
from tidelog.client.admin.logs import OffsetRange
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.survey import commit_progress, diverged, leader_epochs, next_offsets
from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry

pytestmark = pytest.mark.integration


def entry(topic: str, batch_id: int, start: int, end: int, epoch: int) -> CommitEntry:
    count = end - start
    taken = RangeEntry(topic, "id", 0, start, end, start, end - 1, count, 0, "1", "1", ((epoch, start),))
    return CommitEntry("archive", batch_id, (), (taken,))


def test_a_group_gets_the_ends_of_the_newest_commits(
    broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    topic, group = new_topic(), f"progress-{uuid.uuid4().hex[:8]}"
    produce_values(broker.bootstrap, topic, [b"x"] * 20)
    place = TopicPartition(topic, 0)
    entries = [entry(topic, 0, 0, 10, 0), entry(topic, 1, 10, 20, 0)]
    assert next_offsets(entries) == {place: CommittedOffset(20, 0)}
    with Cluster(broker.bootstrap) as cluster:
        commit_progress(cluster, group, entries)
        assert committed_offsets(cluster, group) == {place: 20}
        assert leader_epochs(cluster, {place: OffsetRange(5, 20)}) == {place: ((0, 5),)}


def test_a_log_that_ends_before_the_archived_end_of_its_epoch_has_diverged(
    broker: BrokerProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    produce_values(broker.bootstrap, topic, [b"x"] * 7)
    place = TopicPartition(topic, 0)
    with Cluster(broker.bootstrap) as cluster:
        assert diverged(cluster, {place: CommittedOffset(7, 0)}) == {}
        assert diverged(cluster, {place: CommittedOffset(9, 0)}) == {place: 7}
        assert diverged(cluster, {place: CommittedOffset(9, -1)}) == {}


def test_a_group_with_members_is_not_changed(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic(), f"progress-{uuid.uuid4().hex[:8]}"
    produce_values(broker.bootstrap, topic, [b"x"])
    consumer = new_consumer(broker.bootstrap, group_id=group)
    try:
        consumer.subscribe([topic])
        poll_messages(consumer, 1)
        with (
            Cluster(broker.bootstrap) as cluster,
            pytest.raises(KafkaError, match=f"group '{group}' has members") as refused,
        ):
            commit_progress(cluster, group, [entry(topic, 0, 0, 1, 0)])
    finally:
        consumer.close()
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
