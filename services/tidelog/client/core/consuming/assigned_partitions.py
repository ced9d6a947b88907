"""The partitions of a consumer: their turns to deliver records, and what may be committed of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from tidelog.client.core.cluster_view import ClusterView, MetadataSchedule
from tidelog.client.core.consuming.consumed_partition import (
    ConsumedPartition,
    OffsetToCommit,
    PositionState,
)
from tidelog.client.core.settings import ConsumerSettings
from tidelog.kernel.instants import Backoff
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition


class AssignedPartitions(dict[TopicPartition, ConsumedPartition]):
    """The partitions that the group or the application has given to the consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: list[ConsumedPartition] = []
        """The partitions with records or an error for the application."""
        self.committed_offsets: dict[TopicPartition, int] = {}
        self._generations = count()

    def add(self, place: TopicPartition) -> None:
        if place not in self:
            self[place] = ConsumedPartition(place, self._generations)

    def remove(self, place: TopicPartition) -> None:
        partition = self.pop(place, None)
        self.committed_offsets.pop(place, None)
        if partition is not None:
            partition.fetched.clear()
            self.end_turn(partition)

    def replace(self, places: Iterable[TopicPartition] = ()) -> None:
        """Removes all partitions but these, and adds those of them that are missing."""
        wanted = dict.fromkeys(places)
        for place in [place for place in self if place not in wanted]:
            self.remove(place)
        for place in wanted:
            self.add(place)

    def wait_turn(self, partition: ConsumedPartition) -> None:
        if partition not in self.turn and not partition.is_revoked:
            self.turn.append(partition)

    def end_turn(self, partition: ConsumedPartition) -> None:
        if partition in self.turn:
            self.turn.remove(partition)

    def fail(self, partition: ConsumedPartition, error: KafkaError) -> None:
        """Lets the application get an error of a partition instead of its fetched records."""
        partition.fail(error)
        self.wait_turn(partition)

    def known(self, places: Iterable[TopicPartition]) -> list[ConsumedPartition]:
        return [self[place] for place in places if place in self]

    def unchanged(self, generations: Mapping[TopicPartition, int]) -> list[ConsumedPartition]:
        """Returns the partitions to whose positions a response applies. The application may have sought, or
        the partition may have been another member's since the request.
        """
        return [
            partition
            for partition in self.known(generations)
            if partition.generation == generations[partition.place]
        ]

    def commitable(
        self, places: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetToCommit]:
        """Returns the offsets up to which records are processed but not committed."""
        chosen = self.values() if places is None else self.known(places)
        return {
            partition.place: OffsetToCommit(partition.consumed, partition.consumed_epoch, partition.topic_id)
            for partition in chosen
            if partition.state is PositionState.KNOWN
            and self.committed_offsets.get(partition.place) != partition.consumed
        }

    def chosen_to_commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetToCommit]:
        """Returns the offsets that the application wants to commit, as ones of the topics whose records it
        got.
        """
        topic_ids = {
            partition.place: partition.delivered_topic_id or partition.topic_id
            for partition in self.known(offsets)
        }
        return {
            place: OffsetToCommit(offset, topic_id=topic_ids.get(place)) for place, offset in offsets.items()
        }

    def committed(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        """A commit was stored."""
        for place, (offset, _, topic_id) in offsets.items():
            if place in self and topic_id in (None, self[place].topic_id):
                self.committed_offsets[place] = offset

    def pause(self, places: Iterable[TopicPartition]) -> None:
        for partition in self.known(places):
            partition.is_paused = True

    def resume(self, places: Iterable[TopicPartition]) -> None:
        for partition in self.known(places):
            partition.is_paused = False
            if partition.fetched:
                self.wait_turn(partition)


@dataclass(slots=True)
class ConsumerState:
    """The state that all parts of a consumer's core read and change."""

    settings: ConsumerSettings
    backoff: Backoff
    view: ClusterView
    partitions: AssignedPartitions
    metadata: MetadataSchedule
