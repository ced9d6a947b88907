"""A consumer's share session with one broker (KIP-932): the partitions that the broker knows, and the
acknowledgements on their way.

A session ends with its connection. The broker then gives its records to other members.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from tidelog.client.core.consumer_record import ConsumerRecord
from tidelog.client.core.request_parts import FETCHED_PARTITIONS
from tidelog.model.protocol_values import INITIAL_EPOCH, next_epoch
from tidelog.model.topics import TopicPartition


class AcknowledgeType(IntEnum):
    """The fate of a record."""

    GAP = 0
    """The offset has no record. The client says this by itself."""
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """Another member shall get the record."""
    REJECT = 3
    """The record cannot be processed. Nobody gets it again."""


class AcknowledgedBatch(NamedTuple):
    """Adjacent offsets. There is one type for all of them, or one for each."""

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


Acknowledged = dict[TopicPartition, dict[int, int]]
"""Types by offset, for each partition."""


class DeliveredRecord(NamedTuple):
    """A record that the broker gave to this member. The first delivery has the count 1."""

    place: TopicPartition
    record: ConsumerRecord[Any, Any]
    delivery_count: int


class ShareSession:
    """The state of one session."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.epoch: int = INITIAL_EPOCH
        self.generation: int = 0
        """It changes when the broker forgets the session, and with it what it gave."""
        self.partitions: set[TopicPartition] = set()
        self.topic_ids: dict[str, UUID] = {}
        """The ids of the topics of `partitions`."""
        self.is_in_flight: bool = False
        self.not_before_ms = 0
        self.acknowledgements: Acknowledged = {}
        """The acknowledgements to send."""
        self.in_flight: Acknowledged = {}

    @property
    def is_open(self) -> bool:
        return self.epoch != INITIAL_EPOCH

    def acknowledge(self, place: TopicPartition, types: dict[int, int]) -> None:
        self.acknowledgements.setdefault(place, {}).update(types)

    def change(
        self, places: frozenset[TopicPartition]
    ) -> tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]]:
        """Returns the partitions that the next request adds and takes out, so that the broker reads `places`.
        What exceeds FETCHED_PARTITIONS is left to the requests after it.
        """
        forgotten = sorted(self.partitions - places)[:FETCHED_PARTITIONS]
        added = sorted(places - self.partitions)[: FETCHED_PARTITIONS - len(forgotten)]
        self.partitions.difference_update(forgotten)
        self.partitions.update(added)
        return tuple(added), tuple(forgotten)

    def take_acknowledgements(self) -> dict[TopicPartition, tuple[AcknowledgedBatch, ...]]:
        """Returns the acknowledgements to send, which are in flight from now on."""
        self.in_flight, self.acknowledgements = self.acknowledgements, {}
        return {place: tuple(batches_of(types)) for place, types in self.in_flight.items()}

    def answered(self) -> None:
        """The broker took a request of the session."""
        self.is_in_flight = False
        self.epoch = next_epoch(self.epoch)

    def end(self) -> Acknowledged:
        """The broker has forgotten the session. Returns the acknowledgements that it does not take."""
        failed = self.in_flight
        for place, types in self.acknowledgements.items():
            failed.setdefault(place, {}).update(types)
        self.in_flight, self.acknowledgements = {}, {}
        self.is_in_flight = False
        self.epoch = INITIAL_EPOCH
        self.generation += 1
        self.partitions.clear()
        return failed


def batches_of(types: dict[int, int]) -> Iterable[AcknowledgedBatch]:
    """Yields adjacent offsets together, in order."""
    run: list[int] = []
    start = 0
    for offset in sorted(types):
        if run and offset != start + len(run):
            yield _batch(start, run)
            run = []
        if not run:
            start = offset
        run.append(types[offset])
    if run:
        yield _batch(start, run)


def _batch(start: int, run: list[int]) -> AcknowledgedBatch:
    is_uniform = min(run) == max(run)
    return AcknowledgedBatch(start, start + len(run) - 1, (run[0],) if is_uniform else tuple(run))
