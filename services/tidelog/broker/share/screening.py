"""The records that a share partition has to look at before it may deliver them (ADR 0053).

A group with delayed delivery needs the headers of its records, and a group with order per key their keys. The
shell decodes the batches behind the ones that the core knows, and stages what it found. The core lets staged
records into its window, as many as its limits allow, and delivers only records of the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.broker.share.key_order import KeyOrder
from tidelog.broker.share.record_ranges import NO_DEADLINE
from tidelog.model.instants import MonotonicMs


class Upcoming(NamedTuple):
    """Adjacent records with the same facts. They are not delivered before `available_at_ms`. A `key` belongs
    to one record.
    """

    first: int
    last: int
    available_at_ms: MonotonicMs = NO_DEADLINE
    key: int | None = None


class Screening:
    """The staged records of one share partition. All offsets below `screened_to` are in the window; all
    offsets below `known_to` have been looked at. `order` is the order of keys, if the group has one.
    """

    __slots__ = ("known_to", "order", "screened_to", "staged")

    def __init__(self, order: KeyOrder | None = None) -> None:
        self.order = order
        self.screened_to = 0
        self.known_to = 0
        self.staged: deque[Upcoming] = deque()

    def begin(self, offset: int) -> None:
        """Starts with the first record at or behind `offset`."""
        self.screened_to = self.known_to = offset
        self.staged.clear()

    def stage(self, upcoming: Iterable[Upcoming], known_to: int) -> None:
        """Adds the records that were found up to `known_to`, in order. Offsets between them have none."""
        self.staged.extend(upcoming)
        self.known_to = max(self.known_to, known_to)
