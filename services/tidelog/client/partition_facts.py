"""Reads offsets and sizes of all partitions of many topics, with one request for each broker.

A leader that does not answer is no error here: its partitions are missing in the result. So a cluster with a
broker that is down can still be observed. Such brokers join the caller's set `silent`, and brokers in it are
not asked, so that several calls together wait for a frozen broker only once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.client.admin import READ_UNCOMMITTED
from tidelog.client.cluster import NO_LEADER, Cluster, Topic
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_CONSUMER: Final = -1
_LIST_OFFSETS_SINCE: Final = 2  # isolation levels


class ReplicaSize(NamedTuple):
    """The size of a replica in bytes, as its broker counts it."""

    broker_id: int
    partition: TopicPartition
    size_bytes: int


def offsets_of_topics(
    cluster: Cluster,
    topics: Iterable[Topic],
    timestamp: int,
    silent: set[int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """Returns the first offset at or after `timestamp`, which may be a special one, for each partition whose
    leader answers. An offset is -1 if no record is that late..
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader != NO_LEADER:
                by_leader.setdefault(partition.leader, {}).setdefault(topic.name, []).append(partition.index)
    found: dict[TopicPartition, int] = {}
    timeout_ms = int(cluster.timeout_s * 1000)
    for leader, wanted in by_leader.items():
        if leader in silent:
            continue
        rows = [
            ListOffsetsTopic(name, [ListOffsetsPartition(index, timestamp=timestamp) for index in indexes])
            for name, indexes in wanted.items()
        ]
        request = ListOffsetsRequest(_CONSUMER, isolation_level, rows, timeout_ms)
        try:
            answer = cluster.broker(leader).call(request, ListOffsetsResponse, at_least=_LIST_OFFSETS_SINCE)
        except (ClientError, KafkaError):  # the leader is down, or was removed a moment ago
            silent.add(leader)
            continue
        for answered in answer.topics:
            for row in answered.partitions:
                if row.error_code == ErrorCode.NONE:
                    found[TopicPartition(answered.name, row.partition_index)] = row.offset
    return found


def replica_sizes(
    cluster: Cluster, broker_ids: Iterable[int], silent: set[int], topics: Iterable[Topic] | None = None
) -> list[ReplicaSize]:
    """Returns the sizes of the replicas on those brokers that answer; `topics` None means all topics."""
    wanted = (
        None
        if topics is None
        else [DescribableLogDirTopic(topic.name, [p.index for p in topic.partitions]) for topic in topics]
    )
    found: list[ReplicaSize] = []
    for broker_id in broker_ids:
        if broker_id in silent:
            continue
        try:
            answer = cluster.broker(broker_id).call(DescribeLogDirsRequest(wanted), DescribeLogDirsResponse)
        except (ClientError, KafkaError):
            silent.add(broker_id)
            continue
        found += [
            ReplicaSize(broker_id, TopicPartition(topic.name, row.partition_index), row.partition_size)
            for directory in answer.results
            for topic in directory.topics
            for row in topic.partitions
            if not row.is_future_key
        ]
    return found
