"""The records of a share partition that are in flight, as ranges of offsets with the same state.

A window of offsets, from the start offset to the end offset, is divided into adjacent ranges. A range is
split only where records of it change differently, and equal neighbours become one range again. So a partition
whose consumers acknowledge what they receive has a few ranges, whatever the number of records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from operator import attrgetter
from typing import Final

from tidelog.kernel.instants import MonotonicMs

NO_MEMBER: Final = ""
NO_DEADLINE: Final = MonotonicMs(0)
RANGES_OF_A_SEARCH: Final = 4
"""The number of ranges that are compared in the time in which one is found by its offset."""
_FIRST = attrgetter("first")


class DeliveryState(IntEnum):
    """The state of a record in flight, with its number in the messages of the share coordinator (Kafka's
    `RecordState`).
    """

    WAITING = -1
    """The record may not be delivered yet. This state is only in memory: as stored, the record is available,
    perhaps from a certain time on.
    """
    AVAILABLE = 0
    """The record may be delivered."""
    ACQUIRED = 1
    """A member has the record, and its lock."""
    ACKNOWLEDGED = 2
    """A member has processed the record. It is never delivered again."""
    ARCHIVING = 3
    """The record was given up. It is not delivered again, and not yet in the dead letter topic (KIP-1191)."""
    ARCHIVED = 4
    """The record is never delivered again: it was rejected, delivered too often, or there is no record."""

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again."""
        return self is DeliveryState.ACKNOWLEDGED or self is DeliveryState.ARCHIVED


DELIVERED_LATER: Final = frozenset({DeliveryState.WAITING, DeliveryState.AVAILABLE, DeliveryState.ACQUIRED})
"""The states of records that may be delivered again."""


class RecordRange:
    """Adjacent offsets with the same state. `change` is the acknowledgement that is being written, if there
    is one, and `target` is the state after that write. `is_rejected` says that a member rejected the records.
    `deadline_ms` is the end of the lock, and `available_at_ms` the end of the wait of records that wait, or
    will wait after that write.
    """

    __slots__ = (
        "available_at_ms",
        "change",
        "deadline_ms",
        "delivery_count",
        "first",
        "is_rejected",
        "last",
        "member",
        "state",
        "target",
    )

    def __init__(
        self,
        first: int,
        last: int,
        state: DeliveryState = DeliveryState.AVAILABLE,
        delivery_count: int = 0,
        member: str = NO_MEMBER,
        deadline_ms: MonotonicMs = NO_DEADLINE,
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.delivery_count = delivery_count
        self.member = member
        self.deadline_ms = deadline_ms
        self.available_at_ms = NO_DEADLINE
        self.change: object | None = None
        self.target = state
        self.is_rejected = False

    def __repr__(self) -> str:
        return f"{self.first}-{self.last}:{self.state.name}({self.delivery_count})"

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def coming_state(self) -> DeliveryState:
        """The state after the write in progress, or the state if nothing is being written."""
        return self.state if self.change is None else self.target

    def cut(self, offset: int) -> RecordRange:
        """Ends this range before `offset` and returns the rest as a range of its own."""
        rest = RecordRange(offset, self.last, self.state, self.delivery_count, self.member, self.deadline_ms)
        rest.change, rest.target, rest.is_rejected = self.change, self.target, self.is_rejected
        rest.available_at_ms = self.available_at_ms
        self.last = offset - 1
        return rest

    def is_like(self, other: RecordRange) -> bool:
        """Returns whether the two ranges differ only in their offsets."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member == other.member
            and self.deadline_ms == other.deadline_ms
            and self.change is other.change
            and self.target is other.target
            and self.available_at_ms == other.available_at_ms
            and self.is_rejected == other.is_rejected
        )


class RecordRanges:
    """The window: adjacent ranges from `start` (inclusive) to `end` (exclusive)."""

    __slots__ = ("_final_count", "_next_available", "_ranges", "_waiting_count", "end", "ended", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._ranges: list[RecordRange] = []
        self._final_count = 0
        self._waiting_count = 0
        self.ended: list[tuple[int, int]] | None = None
        """The first and last offsets of records that will not be delivered again, or None if nobody asks."""
        self._next_available = start
        """No record below this offset is available."""

    def __len__(self) -> int:
        """Returns the number of ranges."""
        return len(self._ranges)

    def __iter__(self) -> Iterator[RecordRange]:
        return iter(self._ranges)

    def snapshot(self) -> tuple[RecordRange, ...]:
        """Returns the ranges. Any thread may call it."""
        return tuple(self._ranges)

    @property
    def unfinished_count(self) -> int:
        """The number of records whose state may still change."""
        return self.end - self.start - self._final_count

    @property
    def final_count(self) -> int:
        """The number of records in the window that are acknowledged or archived."""
        return self._final_count

    @property
    def waiting_count(self) -> int:
        """The number of records in the window that wait."""
        return self._waiting_count

    def first_available(self) -> int:
        """Returns the first available offset, `end` if there is none."""
        at = self._index(self._next_available)
        for found in islice(self._ranges, at, None):
            if found.state is DeliveryState.AVAILABLE:
                self._next_available = max(found.first, self._next_available)
                return self._next_available
        self._next_available = self.end
        return self.end

    def overlapping(self, first: int, last: int) -> list[RecordRange]:
        """Returns the ranges with offsets from `first` to `last`, without splitting them."""
        if last < self.start or first >= self.end:
            return []
        return self._ranges[self._index(first) : self._index(last) + 1]

    def within(self, first: int, last: int) -> list[RecordRange]:
        """Returns the ranges from `first` to `last` in the window. Splits those that reach beyond."""
        low = self._split(first)
        return self._ranges[low : self._split(last + 1)]

    def _index(self, offset: int) -> int:
        return max(bisect_right(self._ranges, offset, key=_FIRST) - 1, 0)

    def _split(self, offset: int) -> int:
        """Lets a range begin at `offset` if it is in the window. Returns the index of the first range that
        begins there or later.
        """
        if offset <= self.start:
            return 0
        if offset >= self.end:
            return len(self._ranges)
        at = self._index(offset)
        found = self._ranges[at]
        if found.first < offset:
            at += 1
            self._ranges.insert(at, found.cut(offset))
        return at

    def append(self, added: RecordRange) -> None:
        """Adds a range at the end of the window."""
        assert added.first == self.end, f"{added} does not follow {self.end - 1}"
        self._ranges.append(added)
        self.end = added.last + 1
        if added.state.is_final:
            self._final_count += len(added)
        if added.state is DeliveryState.WAITING:
            self._waiting_count += len(added)

    def set_state(self, changed: RecordRange, state: DeliveryState) -> None:
        """Changes the state of a range of this window. Only an acquired range keeps member and deadline, and
        only a waiting one the time until which it waits, and only one that is being archived keeps that it
        was rejected.
        """
        if changed.state.is_final:
            self._final_count -= len(changed)
        if state.is_final:
            self._final_count += len(changed)
        if changed.state is DeliveryState.WAITING:
            self._waiting_count -= len(changed)
        if state is DeliveryState.WAITING:
            self._waiting_count += len(changed)
        if self.ended is not None and state not in DELIVERED_LATER:
            self.ended.append((changed.first, changed.last))
        changed.state = changed.target = state
        changed.change = None
        if state is not DeliveryState.ACQUIRED:
            changed.member, changed.deadline_ms = NO_MEMBER, NO_DEADLINE
        if state is not DeliveryState.WAITING:
            changed.available_at_ms = NO_DEADLINE
        if state is not DeliveryState.ARCHIVING:
            changed.is_rejected = False
        if state is DeliveryState.AVAILABLE:
            self._next_available = min(self._next_available, changed.first)

    def join(self, first: int, last: int) -> None:
        """Makes one range of equal neighbours among the ranges that touch `first` to `last`."""
        if not self._ranges:
            return
        low = max(self._index(first) - 1, 0)
        high = min(self._index(last) + 2, len(self._ranges))
        joined = [self._ranges[low]]
        for found in self._ranges[low + 1 : high]:
            if found.is_like(joined[-1]):
                joined[-1].last = found.last
            else:
                joined.append(found)
        self._ranges[low:high] = joined

    def join_each(self, spans: Sequence[tuple[int, int]]) -> None:
        """Makes one range of equal neighbours at each of these spans of offsets, which are in order. Many of
        them are joined in one pass over all ranges between them, because each join searches its place.
        """
        if len(spans) * RANGES_OF_A_SEARCH > len(self._ranges):
            self.join(spans[0][0], spans[-1][1])
            return
        for first, last in spans:
            self.join(first, last)

    def drop_final(self) -> None:
        """Moves the start offset over the records at the start that are acknowledged or archived."""
        count = 0
        for found in self._ranges:
            if not found.state.is_final:
                break
            count += 1
        if count:
            self.drop_below(self._ranges[count - 1].last + 1)

    def drop_below(self, offset: int) -> None:
        """Moves the start offset to `offset`, and the end offset too if it is lower."""
        if offset <= self.start:
            return
        if self.ended is not None:
            self.ended.append((self.start, offset - 1))
        self._split(offset)
        count = sum(1 for found in self._ranges[: self._index(offset) + 1] if found.first < offset)
        for found in self._ranges[:count]:
            if found.state.is_final:
                self._final_count -= len(found)
            if found.state is DeliveryState.WAITING:
                self._waiting_count -= len(found)
        del self._ranges[:count]
        self.start = offset
        self.end = max(self.end, offset)
        self._next_available = max(self._next_available, offset)
