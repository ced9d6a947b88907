"""The records that a share partition has to look at before it may deliver them (ADR 0053).

A group with delayed delivery needs the headers of its records, and a group with order per key their keys. The
shell decodes the batches behind the ones that the core knows (`find_facts`, in a thread), and stages what it
found (`Screening`). The core lets staged records into its window, as many as its limits allow, and delivers
only records of the window, those of one key in the order of their offsets (`KeyOrder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from tidelog.broker.share.record_ranges import NO_DEADLINE
from tidelog.kernel.instants import MonotonicMs
from tidelog.records.batch import BatchHeader, Buffer, iterate_headers
from tidelog.records.record import RecordSpan, read_headers, records_of, scan_offsets

DELIVER_AT: Final = "tidelog-deliver-at"
"""The header with the time of day before which a record is not delivered: milliseconds since 1970 in ASCII
digits.
"""
MAX_HEADERS: Final = 100
"""The number of headers of a record among which DELIVER_AT is searched."""
MAX_RECORDS: Final = 1_000
"""The most facts of one look at the log. To let them into a window takes about 10 ms of the event loop."""
MAX_FOUND_RECORDS: Final = 10 * MAX_RECORDS
"""The most records whose facts one decoding finds. A batch has to be decoded from its beginning, so one
decoding finds more facts than one look at the log uses, and the next looks use the rest.
"""
MAX_DIGITS: Final = 19


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


class KeyOrder:
    """The unfinished records of a share partition by their keys. The first one of each key may be delivered,
    and the others wait until it is finished: accepted, given up, or no more in the log.

    A key is a number, a hash of the bytes. Keys with equal hashes wait for each other, which does no harm.
    """

    __slots__ = ("_keys", "_queues")

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        """The key of each unfinished record, by its offset."""
        self._queues: dict[int, deque[int]] = {}
        """The offsets of each key in order. Those behind the first may be finished already."""

    def __len__(self) -> int:
        """Returns the number of unfinished records."""
        return len(self._keys)

    def add(self, offset: int, key: int) -> None:
        """Adds a record behind all others of its key."""
        self._keys[offset] = key
        self._queues.setdefault(key, deque()).append(offset)

    def is_first(self, offset: int) -> bool:
        """Returns whether a record may be delivered. A record without a key always may."""
        key = self._keys.get(offset)
        return key is None or self._queues[key][0] == offset

    def finish(self, first: int, last: int) -> list[int]:
        """Removes the records from `first` to `last`. Returns those that may be delivered from now on."""
        is_long = last - first >= len(self._keys)
        offsets = [at for at in self._keys if first <= at <= last] if is_long else range(first, last + 1)
        changed = {key for at in offsets if (key := self._keys.pop(at, None)) is not None}
        firsts = []
        for key in changed:
            queue = self._queues[key]
            was_first = queue[0]
            while queue and queue[0] not in self._keys:
                queue.popleft()
            if not queue:
                del self._queues[key]
            elif queue[0] != was_first:
                firsts.append(queue[0])
        return firsts


class RecordFacts(NamedTuple):
    """Adjacent records with the same facts. `deliver_at_ms` is a time of day, 0 without one. With a `key`, it
    is one record; equal keys have equal numbers in this process.
    """

    first: int
    last: int
    deliver_at_ms: int = 0
    key: int | None = None


class WantedFacts(NamedTuple):
    """The facts to look for. A time that is more than `max_delay_ms` after the record's timestamp does not
    count; with None, no header is looked at.
    """

    max_delay_ms: int | None
    keys: bool


class FoundFacts(NamedTuple):
    """The facts about the records below `next_offset`. Offsets between them have no record."""

    records: list[RecordFacts]
    next_offset: int

    def split(self) -> tuple[FoundFacts, FoundFacts]:
        """Returns the first MAX_RECORDS facts, and the rest."""
        first, rest = self.records[:MAX_RECORDS], self.records[MAX_RECORDS:]
        next_offset = first[-1].last + 1 if rest else self.next_offset
        return FoundFacts(first, next_offset), FoundFacts(rest, self.next_offset)


def find_facts(batches: Buffer, first_offset: int, wanted: WantedFacts) -> FoundFacts:
    """Returns the facts about the records from `first_offset` on in adjacent batches, MAX_FOUND_RECORDS
    records at most.

    A value that is no time does not count. Records that cannot be decoded have no facts: their consumers will
    see the damage. Raises CorruptBatchError if a batch has no valid header.
    """
    found: list[RecordFacts] = []
    next_offset, left = first_offset, MAX_FOUND_RECORDS
    for position, header in iterate_headers(batches):
        if header.last_offset < first_offset:
            continue
        if left <= 0:
            break
        records: list[RecordFacts] = []
        if not header.is_control:
            try:
                records += islice(_facts_of(batches, position, header, first_offset, wanted), left)
            except ValueError:  # all errors of damaged bytes are ValueErrors
                records = [RecordFacts(max(header.base_offset, first_offset), header.last_offset)]
        for facts in records:
            _append(found, facts)
        left -= len(records)
        next_offset = header.last_offset + 1
        if records and left <= 0:
            next_offset = records[-1].last + 1  # the batch may have more
    return FoundFacts(found, next_offset)


def _facts_of(
    batches: Buffer, position: int, header: BatchHeader, first_offset: int, wanted: WantedFacts
) -> Iterator[RecordFacts]:
    body = records_of(batches, header, position)
    for offset, span in scan_offsets(body, header):
        if offset < first_offset:
            continue
        at_ms, key = 0, None
        if wanted.max_delay_ms is not None:
            at_ms = _deliver_at_ms(body, span, header, wanted.max_delay_ms)
        if wanted.keys and span.key_length >= 0:
            key = hash(bytes(body[span.key_start : span.key_start + span.key_length]))
        yield RecordFacts(offset, offset, at_ms, key)


def _deliver_at_ms(body: memoryview, span: RecordSpan, header: BatchHeader, max_delay_ms: int) -> int:
    headers, _ = read_headers(body, span.headers_start, span.end, MAX_HEADERS)
    value = next((value for name, value in headers if name == DELIVER_AT), None)
    if value is None or not value.isdigit() or len(value) > MAX_DIGITS:
        return 0
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    if not header.is_log_append_time:
        timestamp += span.timestamp_delta
    at_ms = int(value)
    return at_ms if timestamp < 0 or at_ms - timestamp <= max_delay_ms else 0


def _append(found: list[RecordFacts], facts: RecordFacts) -> None:
    last = found[-1] if found else None
    if last is not None and last.last + 1 == facts.first and last[2:] == facts[2:] and facts.key is None:
        found[-1] = last._replace(last=facts.last)
    else:
        found.append(facts)
