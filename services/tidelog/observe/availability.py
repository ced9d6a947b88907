"""The rule that decides whether a broker may stop without making a partition unavailable.

The chart's roll, `tidelog plan` and `tidelog doctor` use it. A partition can be written with acks=all while
at least `min.insync.replicas` of its replicas are in sync, or all of them if it has fewer. A partition has a
spare replica if it has more replicas than that. Then a broker may stop if enough other replicas are in sync.
If it has none, its clients have to wait whenever one of its brokers is away. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.client.cluster import Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.model.topics import TopicPartition, effective_min_in_sync_replicas

NAMED_PARTITIONS: Final = 3
"""The number of partitions that a message names."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The state of a partition. `leader` is -1 if it has none."""

    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    min_isr: int
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment is adding. Nothing waits for them."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def settled_replicas(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def lacking(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.settled_replicas if replica not in self.isr)

    @property
    def needed_isr(self) -> int:
        return effective_min_in_sync_replicas(self.min_isr, len(self.settled_replicas))

    @property
    def has_spare(self) -> bool:
        return len(self.settled_replicas) > self.needed_isr

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.needed_isr

    def needs(self, broker_id: int) -> bool:
        """Returns whether the partition has spare replicas, but currently needs this broker."""
        return self.has_spare and broker_id in self.isr and len(self.isr) - 1 < self.needed_isr

    def waits_for(self, broker_id: int) -> bool:
        """Returns whether the partition has no spare replica, so that its clients wait for this broker."""
        return not self.has_spare and broker_id in self.settled_replicas


def endangered(partitions: Iterable[PartitionView], broker_id: int) -> list[PartitionView]:
    """Returns the partitions that have spare replicas, but currently need this broker."""
    return [partition for partition in partitions if partition.needs(broker_id)]


def interrupted(partitions: Iterable[PartitionView], broker_id: int) -> list[PartitionView]:
    """Returns the partitions without a spare replica that can't be written while this broker is away."""
    return [partition for partition in partitions if partition.waits_for(broker_id)]


def out_of_sync(partitions: Iterable[PartitionView]) -> list[PartitionView]:
    return [partition for partition in partitions if partition.lacking]


def leaderless(partitions: Iterable[PartitionView]) -> list[PartitionView]:
    return [partition for partition in partitions if partition.leader < 0]


def needed_reason(broker_id: int, needing: Collection[PartitionView]) -> str:
    """Returns why a broker must not stop while these partitions need it."""
    return f"without broker {broker_id} fewer than min.insync.replicas would be in sync of {named(needing)}"


def named(partitions: Collection[object]) -> str:
    """Returns the first partitions as texts, and how many more there are."""
    shown = ", ".join(str(partition) for partition in list(partitions)[:NAMED_PARTITIONS])
    more = len(partitions) - NAMED_PARTITIONS
    return f"{shown} and {more} more" if more > 0 else shown


def merge_views(
    views: Sequence[Mapping[str, Topic]],
    min_isr: Mapping[str, int],
    adding: Mapping[TopicPartition, tuple[int, ...]],
) -> list[PartitionView]:
    """Returns each partition's state with the newest leader epoch and, among those, the smallest ISR.

    Brokers learn of a change one after the other. Topics without a `min_isr` are being deleted.
    """
    newest: dict[TopicPartition, Partition] = {}
    isr: dict[TopicPartition, frozenset[int]] = {}
    for view in views:
        for topic in view.values():
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.index)
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
