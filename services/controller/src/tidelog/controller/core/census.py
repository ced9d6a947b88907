"""The cluster in numbers, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller.core.state import ClusterState
from tidelog.rpc.broker_commands import NO_LEADER


class Census(NamedTuple):
    """`partition_counts` by topic. `preferred_replica_imbalance_count`: partitions led by another than their
    first replica; `reassigning_partition_count`: those on their way to other brokers.
    """

    partition_counts: dict[str, int]
    offline_partition_count: int
    preferred_replica_imbalance_count: int
    reassigning_partition_count: int


def take_census(state: ClusterState) -> Census:
    """Walks every partition. It may be called from any thread: it walks copies."""
    brokers = set(state.brokers)
    offline = imbalanced = reassigning = 0
    counts: dict[str, int] = {}
    for topic in list(state.topics.values()):
        counts[topic.name] = len(topic.assignments)
        reassigning += len(topic.adding.keys() | topic.removing.keys())
        stored = dict(state.partitions.get(topic.name, {}))
        for index, replicas in enumerate(topic.assignments):
            if index not in stored:
                continue
            leader = stored[index].state.leader
            if leader == NO_LEADER or leader not in brokers:
                offline += 1
            if leader != replicas[0]:
                imbalanced += 1
    return Census(counts, offline, imbalanced, reassigning)
