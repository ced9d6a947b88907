"""What changed while records were applied: the ground for the commands that brokers are sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.metadata.entries import TopicEntry


@dataclass(slots=True)
class ChangeSet:
    """Filled by `ClusterState.apply`; names may be of topics that are gone by now."""

    topics: set[str] = field(default_factory=set)
    partitions: set[tuple[str, int]] = field(default_factory=set)
    new_partitions: set[tuple[str, int]] = field(default_factory=set)
    deleted_topics: list[TopicEntry] = field(default_factory=list)
    # Brokers that registered, and that went; a reborn one is in both. `brokers`: one changed what it says
    # of itself.
    born: set[int] = field(default_factory=set)
    died: set[int] = field(default_factory=set)
    brokers: bool = False
    broker_configs: bool = False
    features: bool = False

    @property
    def is_empty(self) -> bool:
        return not (
            self.topics
            or self.partitions
            or self.deleted_topics
            or self.born
            or self.died
            or self.brokers
            or self.broker_configs
            or self.features
        )
