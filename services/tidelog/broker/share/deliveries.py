"""The inputs and results of a share partition's core: fetches, acknowledgements and writes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class AcknowledgeType(IntEnum):
    """The types of acknowledgements, with Kafka's numbers."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcquireMode(IntEnum):
    """The ways to limit the records of one fetch (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    """Whole batches, the last of which may exceed the limit."""
    RECORD_LIMIT = 1
    """Never more than the limit."""


class DeliveryLimits(NamedTuple):
    """The limits of a group. They may differ between two calls."""

    lock_duration_ms: int
    delivery_count: int
    """The most deliveries of one record."""
    records_in_flight: int
    """The most records of one share partition whose state may still change."""


class LogBatch(NamedTuple):
    """The offsets of a batch in the log. A control batch or an aborted one is not deliverable."""

    first: int
    last: int
    is_deliverable: bool = True


class AcquiredRange(NamedTuple):
    """Records that a member has acquired."""

    first: int
    last: int
    delivery_count: int


class Wanted(NamedTuple):
    """The request of one fetch. `batch_size` is the number of records that acquired ranges should have."""

    member: str
    max_records: int
    batch_size: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class AcknowledgedBatch(NamedTuple):
    """Offsets with one type for all of them, or one type for each."""

    first: int
    last: int
    types: Sequence[int]


class StateRange(NamedTuple):
    """A range as the share coordinator stores it."""

    first: int
    last: int
    state: int
    delivery_count: int


class Acknowledgement:
    """One acknowledgement of a member, which a write decides."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        """The first and last offsets of its records, in order."""

    def add(self, first: int, last: int) -> None:
        """Adds records behind the others."""
        if self.spans and self.spans[-1][1] + 1 == first:
            self.spans[-1] = self.spans[-1][0], last
        else:
            self.spans.append((first, last))


class StateWrite(NamedTuple):
    """A write to the share coordinator, and the acknowledgements that it decides."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    ranges: list[StateRange]
    acknowledgements: list[Acknowledgement]
