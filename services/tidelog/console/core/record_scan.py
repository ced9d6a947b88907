"""A search for records in partitions, in turns and within a budget of bytes, records and time. The caller
fetches the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.console.core.decoded import Decode, DecodedRecord
from tidelog.console.core.record_query import RecordFilter
from tidelog.console.core.record_text import ShownRecord, show_record
from tidelog.kernel.instants import MonotonicMs
from tidelog.records.aborted import visible_batches
from tidelog.records.record import Record, iterate_records

MIB: Final = 1024 * 1024
MAX_HEADERS: Final = 1_000
"""The headers of a record that the search looks at."""
_RECORDS_BETWEEN_CHECKS: Final = 64
_HEADER_BYTES: Final = 16


class Budget(NamedTuple):
    """The most that a request may read. `max_bytes` limits both the bytes that brokers send and the bytes of
    the records after decompression.
    """

    max_bytes: int = 64 * MIB
    max_records: int = 500_000
    max_ms: int = 5_000


@dataclass(slots=True)
class Spent:
    """The work that a request has done."""

    began_ms: MonotonicMs
    fetched_bytes: int = 0
    record_bytes: int = 0
    records: int = 0

    @property
    def read_bytes(self) -> int:
        return max(self.fetched_bytes, self.record_bytes)

    def limit_reached(self, budget: Budget, now_ms: MonotonicMs) -> str | None:
        """Returns the limit that is used up, such as `64.0 MiB`, or None if the request may go on."""
        if self.read_bytes >= budget.max_bytes:
            return f"{budget.max_bytes / MIB:.1f} MiB"
        if self.records >= budget.max_records:
            return f"{budget.max_records:,} records"
        if now_ms - self.began_ms >= budget.max_ms:
            return f"{budget.max_ms / 1000:.1f} s"
        return None


def record_order(record: ShownRecord) -> tuple[int, int, int]:
    return record.timestamp, record.partition, record.offset


class RecordScan:
    """The state of a search.

    `positions` holds the next offset of each partition. `found` holds the records in the order in which they
    were found, and `dropped` counts those that later ones replaced. `stopped_at` names the limit that ended
    the search, such as `64.0 MiB`, and is None if the search read everything or found enough.
    """

    def __init__(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        wanted: RecordFilter,
        budget: Budget,
        max_found: int,
        began_ms: MonotonicMs,
        *,
        is_whole: bool = False,
        keeps_latest: bool = False,
        decode: Decode | None = None,
        spent: Spent | None = None,
    ) -> None:
        """`ends` holds the offset after the last one of each partition that is searched. `is_whole` shows
        keys and values as the page of one record does. `keeps_latest` reads up to the ends, and keeps
        the latest records: at least `max_found` and less than twice as many. `decode` decodes keys and values
        for the filter and for the page. `spent` is the work of an earlier part of the same search.
        """
        self._decode = decode
        self._is_whole = is_whole
        self.positions = dict(starts)
        self.found: list[ShownRecord] = []
        self.dropped = 0
        self.spent = spent or Spent(began_ms)
        self.stopped_at: str | None = None
        self._ends = dict(ends)
        self._wanted = wanted
        self._budget = budget
        self._max_found = max_found
        self._turns = deque(sorted(index for index in starts if starts[index] < ends[index]))
        self._share = max(1, max_found // max(1, len(self._turns)))
        self._keeps_latest = keeps_latest

    @property
    def is_full(self) -> bool:
        return not self._keeps_latest and len(self.found) >= self._max_found

    @property
    def has_more(self) -> bool:
        """Whether a partition has offsets that the search has not read."""
        return bool(self._turns)

    def next_partition(self, now_ms: MonotonicMs) -> int | None:
        """Returns the partition to fetch from `positions`, or None if the search is over."""
        if self.stopped_at is not None or self.is_full or not self._turns:
            return None
        self.stopped_at = self.spent.limit_reached(self._budget, now_ms)
        return self._turns[0] if self.stopped_at is None else None

    def take(
        self,
        raw: memoryview,
        aborted: tuple[tuple[int, int], ...],
        clock: Callable[[], MonotonicMs],
    ) -> None:
        """Takes the batches that were fetched for `next_partition`, and passes the turn on.

        Raises ValueError for damaged bytes.
        """
        index = self._turns.popleft()
        before = self.positions[index]
        self.spent.fetched_bytes += len(raw)
        self._read(index, raw, aborted, clock)
        # A leader that sends no progress has nothing more, although its end offset promised it.
        if self.stopped_at is not None or before < self.positions[index] < self._ends[index]:
            self._turns.append(index)

    def _read(
        self,
        index: int,
        raw: memoryview,
        aborted: tuple[tuple[int, int], ...],
        clock: Callable[[], MonotonicMs],
    ) -> None:
        share = len(self.found) + self._share
        skipped = 0
        for start, header, is_visible in visible_batches(raw, aborted):
            if is_visible:
                for record in iterate_records(raw, start, max_headers=MAX_HEADERS):
                    if record.offset < self.positions[index]:
                        skipped += 1
                        if not skipped % _RECORDS_BETWEEN_CHECKS:
                            self.stopped_at = self.spent.limit_reached(self._budget, clock())
                            if self.stopped_at is not None:
                                return
                        continue
                    if record.offset >= self._ends[index]:
                        self.positions[index] = self._ends[index]
                        return
                    self._look_at(index, record)
                    is_served = not self._keeps_latest and len(self.found) >= share
                    if self.is_full or is_served or self._is_spent(clock):
                        return
            self.positions[index] = max(self.positions[index], header.last_offset + 1)
            if self._is_spent(clock, always=True):
                return

    def _look_at(self, index: int, record: Record) -> None:
        self.positions[index] = record.offset + 1
        self.spent.records += 1
        self.spent.record_bytes += (
            len(record.key or b"")
            + len(record.value or b"")
            + sum(_HEADER_BYTES + len(name) + len(content or b"") for name, content in record.headers)
        )
        decoded = DecodedRecord(record, self._decode)
        if self._wanted.matches(record, decoded):
            self.found.append(show_record(index, record, decoded, is_whole=self._is_whole))
            if self._keeps_latest and len(self.found) >= 2 * self._max_found:
                self.dropped += len(self.found) - self._max_found
                self.found = sorted(self.found, key=record_order)[-self._max_found :]

    def _is_spent(self, clock: Callable[[], MonotonicMs], *, always: bool = False) -> bool:
        """Returns whether the budget is used up. It looks at the clock only for some records, but for each
        one that may be decoded, because one can take as long as many others.
        """
        if not always and self._decode is None and self.spent.records % _RECORDS_BETWEEN_CHECKS:
            return False
        return self.spent.limit_reached(self._budget, clock()) is not None
