"""The cluster in numbers, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller.core.state import ClusterState
from tidelog.rpc.broker_commands import NO_LEADER


class Census(NamedTuple):
    """`preferred_replica_imbalance_count`: partitions led by another than their first replica."""

    topic_count: int = 0
    partition_count: int = 0
    offline_partition_count: int = 0
    preferred_replica_imbalance_count: int = 0
    active_broker_count: int = 0


def take_census(state: ClusterState) -> Census:
    """Walks every partition. It may be called from any thread: it walks copies."""
    brokers = set(state.brokers)
    offline = imbalanced = partition_count = 0
    topics = list(state.topics.values())
    for topic in topics:
        partition_count += len(topic.assignments)
        stored = dict(state.partitions.get(topic.name, {}))
        for index, replicas in enumerate(topic.assignments):
            if index not in stored:
                continue
            leader = stored[index].state.leader
            if leader == NO_LEADER or leader not in brokers:
                offline += 1
            if leader != replicas[0]:
                imbalanced += 1
    return Census(len(topics), partition_count, offline, imbalanced, len(brokers))
