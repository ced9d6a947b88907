"""Who of a partition's replicas is there, and how far it can be trusted, at the moment of a decision."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.controller.core.state import ClusterState, StoredPartition
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.model.topics import TopicPartition


class RollCall(NamedTuple):
    """Sets of broker ids, the first three each a part of `alive`. `failed` are there and can't serve this
    replica: as good as dead, only that they go on trying.

    `steady` have been there since before the partition's state was written: a broker that was born again
    since then is a death and a birth (KIP-903). `stopping` go down of their own accord and are elected
    nowhere. `suspect` may have lost the end of this log, and no longer belong to its ISR or ELR.
    """

    alive: frozenset[int]
    steady: frozenset[int]
    stopping: frozenset[int]
    suspect: frozenset[int]
    failed: frozenset[int]

    def is_untouched(self, before: PartitionStateEntry) -> bool:
        """Nothing that has befallen a broker calls for another state."""
        return not before.elr and before.leader in self.steady and self.steady.issuperset(before.isr)


def call_roll(state: ClusterState, replicas: tuple[int, ...], stored: StoredPartition) -> RollCall:
    before = stored.state
    partition = TopicPartition(before.topic, before.partition)
    alive, steady, stopping, suspect, failed = [], [], [], [], []
    for replica in {*replicas, *before.isr, *before.elr}:
        broker = state.brokers.get(replica)
        if broker is None:
            continue
        is_suspect = replica in state.unsettled_suspects and (
            broker.is_log_suspect or partition in broker.suspect_partitions
        )
        if is_suspect:  # also one that can't serve: it may be able to later
            suspect.append(replica)
        if partition in state.failed_replicas.get(replica, ()):
            failed.append(replica)
            continue
        alive.append(replica)
        if replica in state.stopping:
            stopping.append(replica)
        if not is_suspect and broker.broker_epoch < stored.mod_revision:
            steady.append(replica)
    return RollCall(
        frozenset(alive), frozenset(steady), frozenset(stopping), frozenset(suspect), frozenset(failed)
    )
