"""What changed while records were applied: the ground for the commands that brokers are sent."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.metadata.entries import TopicEntry


class RemovedReplica(NamedTuple):
    """A broker that is no longer to have a replica of a partition that goes on existing."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    broker_id: int


@dataclass(slots=True)
class ChangeSet:
    """Filled by `ClusterState.apply`; names may be of topics that are gone by now."""

    # What clients are to be told: topics to be sent in UpdateMetadata.
    topics: set[str] = field(default_factory=set)
    # What replicas are to be told: partitions to be sent in LeaderAndIsr.
    partitions: set[tuple[str, int]] = field(default_factory=set)
    new_partitions: set[tuple[str, int]] = field(default_factory=set)
    # Whose state changed in any way, an ISR written by its leader included.
    touched_partitions: set[tuple[str, int]] = field(default_factory=set)
    removed_replicas: set[RemovedReplica] = field(default_factory=set)
    deleted_topics: list[TopicEntry] = field(default_factory=list)
    # Brokers that registered, and that went; a reborn one is in both. `brokers`: one changed what it says
    # of itself.
    born: set[int] = field(default_factory=set)
    died: set[int] = field(default_factory=set)
    stopping: set[int] = field(default_factory=set)
    # Brokers that can't serve replicas of theirs, or can again.
    replicas_failed: bool = False
    brokers: bool = False
    topic_configs: bool = False
    broker_configs: bool = False
    features: bool = False

    @property
    def is_empty(self) -> bool:
        """Nobody has to be told anything."""
        return not (
            self.topics
            or self.partitions
            or self.removed_replicas
            or self.deleted_topics
            or self.born
            or self.died
            or self.brokers
            or self.broker_configs
            or self.features
        )

    @property
    def calls_for_a_look_at_moves(self) -> bool:
        """Whether reassignments may have come to their ends, or begun."""
        return bool(self.born or self.touched_partitions or self.topics)

    @property
    def calls_for_elections(self) -> bool:
        """Whether partitions may want another leader, ISR or ELR by now."""
        return bool(
            self.born or self.died or self.replicas_failed or self.topic_configs or self.broker_configs
        )
