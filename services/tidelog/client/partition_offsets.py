"""Reads the offsets at a time of many partitions, with few requests to each leader.

Partitions without a leader or with an error are left out: nothing is retried. With a set `silent`, a leader
that does not answer is no error either, so a cluster with a broker that is down can be observed. The leader
joins the set, and brokers in the set are not asked, so that several calls together wait for a frozen broker
only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.client.admin import OffsetAt
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.request_parts import in_parts
from tidelog.client.errors import ClientError
from tidelog.client.rebalance_plan import PartitionKey
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import CONSUMER_REPLICA_ID, NO_LEADER, READ_UNCOMMITTED
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_WITH_TIMESTAMPS: Final = 1
_WITH_ISOLATION: Final = 2
"""The first versions whose response has a timestamp, and whose request has an isolation level."""


def offsets_at(
    cluster: Cluster,
    timestamps: Mapping[PartitionKey, int],
    leaders: Mapping[PartitionKey, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    silent: set[int] | None = None,
) -> dict[PartitionKey, OffsetAt]:
    """Returns the first offset at or after a timestamp, which may be a special one, for each partition.

    Raises, without `silent`, ClientError if a leader does not answer and KafkaError if it is not registered.
    """
    of_leader: dict[int, list[PartitionKey]] = {}
    for key in sorted(timestamps):
        leader = leaders.get(key, NO_LEADER)
        if leader != NO_LEADER:
            of_leader.setdefault(leader, []).append(key)
    timeout_ms = int(cluster.timeout_s * 1000)
    least = _WITH_ISOLATION if isolation_level else _WITH_TIMESTAMPS
    found: dict[PartitionKey, OffsetAt] = {}
    for leader, keys in sorted(of_leader.items()):
        for part in in_parts(keys):
            topics: dict[str, list[ListOffsetsPartition]] = {}
            for topic, index in part:
                row = ListOffsetsPartition(index, timestamp=timestamps[topic, index])
                topics.setdefault(topic, []).append(row)
            asked = [ListOffsetsTopic(name, rows) for name, rows in topics.items()]
            request = ListOffsetsRequest(CONSUMER_REPLICA_ID, isolation_level, asked, timeout_ms)
            if silent is not None and leader in silent:
                break
            try:
                answer = cluster.broker(leader).call(request, ListOffsetsResponse, at_least=least)
            except (ClientError, KafkaError):
                if silent is None:
                    raise
                silent.add(leader)
                break
            for topic_answer in answer.topics:
                for got in topic_answer.partitions:
                    if got.error_code == ErrorCode.NONE:
                        key = (topic_answer.name, got.partition_index)
                        found[key] = OffsetAt(got.offset, got.timestamp, got.leader_epoch)
    return found


def offsets_of_topics(
    cluster: Cluster,
    topics: Iterable[Topic],
    timestamp: int,
    *,
    isolation_level: int = READ_UNCOMMITTED,
    silent: set[int] | None = None,
) -> dict[TopicPartition, int]:
    """Returns the first offset at or after a timestamp for all partitions of `topics`, as `offsets_at` does.
    An offset is -1 if no record is that late.
    """
    leaders: dict[PartitionKey, int] = {
        TopicPartition(topic.name, partition.index): partition.leader
        for topic in topics
        for partition in topic.partitions
    }
    found = offsets_at(
        cluster, dict.fromkeys(leaders, timestamp), leaders, isolation_level=isolation_level, silent=silent
    )
    return {TopicPartition(*key): at.offset for key, at in found.items()}
