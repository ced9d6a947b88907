"""Reads the state of partitions from all brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.client.availability import PartitionView
from tidelog.client.cluster import Cluster, Partition, Topic
from tidelog.client.configs import describe_topics_setting
from tidelog.client.reassignments import list_reassignments
from tidelog.client.rebalance_plan import PartitionKey

MIN_ISR = "min.insync.replicas"


def look_at_cluster(cluster: Cluster) -> tuple[frozenset[int], list[PartitionView]]:
    """Returns the live brokers and the partitions.

    Raises KafkaError, ClientError if one of the brokers does not answer.
    """
    live = frozenset(broker.broker_id for broker in cluster.describe().brokers)
    views = [cluster.topics(seen_by=broker_id) for broker_id in sorted(live)]
    names = {name for view in views for name in view}
    min_isr = describe_topics_setting(cluster, names, MIN_ISR) if names else {}
    adding = {key: move.adding for key, move in list_reassignments(cluster).items()}
    return live, merge_views(views, {name: int(value or 1) for name, value in min_isr.items()}, adding)


def merge_views(
    views: Sequence[Mapping[str, Topic]],
    min_isr: Mapping[str, int],
    adding: Mapping[PartitionKey, tuple[int, ...]],
) -> list[PartitionView]:
    """Returns each partition's state with the newest leader epoch and, among those, the smallest ISR.

    Brokers learn of a change one after the other. Topics without a `min_isr` are being deleted.
    """
    newest: dict[PartitionKey, Partition] = {}
    isr: dict[PartitionKey, frozenset[int]] = {}
    for view in views:
        for topic in view.values():
            for partition in topic.partitions:
                key = (topic.name, partition.index)
                known = newest.get(key)
                if known is None or partition.leader_epoch > known.leader_epoch:
                    newest[key], isr[key] = partition, frozenset(partition.isr)
                elif partition.leader_epoch == known.leader_epoch:
                    isr[key] &= frozenset(partition.isr)
    return [
        PartitionView(
            key[0],
            key[1],
            partition.leader,
            partition.replicas,
            isr[key],
            min_isr[key[0]],
            adding.get(key, ()),
        )
        for key, partition in sorted(newest.items())
        if key[0] in min_isr
    ]
