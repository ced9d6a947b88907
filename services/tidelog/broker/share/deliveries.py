"""The inputs and results of a share partition's core: fetches, acknowledgements and writes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from tidelog.broker.share.pauses import NO_BACKOFF, NO_BREAKER, BreakerRules
from tidelog.broker.share.record_ranges import NO_DEADLINE
from tidelog.kernel.instants import Backoff, MonotonicMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import SharePartitionKey


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
    retry: Backoff = NO_BACKOFF
    breaker: BreakerRules = NO_BREAKER
    has_dead_letters: bool = False
    """Whether the group has a dead letter topic. Records that are given up are copied there first."""


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


class DeadLetters(NamedTuple):
    """Records that were given up and that must be copied to the dead letter topic."""

    first: int
    last: int
    delivery_count: int
    is_rejected: bool
    """Whether a member rejected them. Otherwise they were delivered too often."""


class StateRange(NamedTuple):
    """A range as the share coordinator stores it. `available_at_ms` is the time before which the records are
    not delivered, or NO_DEADLINE.
    """

    first: int
    last: int
    state: int
    delivery_count: int
    available_at_ms: MonotonicMs = NO_DEADLINE


OUTCOMES: Final = ("accepted", "released", "rejected", "expired", "abandoned")
"""The ways in which a delivery ends. The lock of an expired one has ended, and the session of the member with
an abandoned one.
"""


class DeliveryCounts:
    """Records by the outcome of their delivery, and records that were delivered again, since the share
    partition was loaded. Any thread may read them.
    """

    __slots__ = (*OUTCOMES, "redelivered")

    def __init__(self) -> None:
        self.accepted = 0
        self.released = 0
        self.rejected = 0
        self.expired = 0
        self.abandoned = 0
        self.redelivered = 0

    def add(self, other: DeliveryCounts) -> None:
        """Adds the counts of another share partition."""
        self.accepted += other.accepted
        self.released += other.released
        self.rejected += other.rejected
        self.expired += other.expired
        self.abandoned += other.abandoned
        self.redelivered += other.redelivered

    def acknowledged(self, counts: dict[int, int]) -> None:
        """Adds the records of an acknowledgement by its types. Gaps are not records."""
        self.accepted += counts.get(AcknowledgeType.ACCEPT, 0)
        self.released += counts.get(AcknowledgeType.RELEASE, 0)
        self.rejected += counts.get(AcknowledgeType.REJECT, 0)


class Acknowledgement:
    """One acknowledgement of a member, which a write decides."""

    __slots__ = ("counts", "spans")

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        """The first and last offsets of its records, in order."""
        self.counts: dict[int, int] = {}
        """The number of its records by their `AcknowledgeType`."""

    def add(self, first: int, last: int, kind: int) -> None:
        """Adds records behind the others."""
        self.counts[kind] = self.counts.get(kind, 0) + last - first + 1
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
    paused_until_ms: MonotonicMs = NO_DEADLINE
    """The end of the circuit breaker's pause."""


class AcknowledgementsOf(NamedTuple):
    """Names the acknowledgements of a share partition that are being stored."""

    partition: SharePartitionKey


class AcknowledgeResult:
    """The result of one acknowledgement. `error` is None until it is known."""

    __slots__ = ("error", "message")

    def __init__(self, error: ErrorCode | None = None, message: str | None = None) -> None:
        self.error = error
        self.message = message
