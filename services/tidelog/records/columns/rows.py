"""The rows of record batches: where each record is, its offset and its time. NumPy replaces a loop over
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from tidelog.records.batch import BatchHeader, Buffer, CorruptBatchError
from tidelog.records.columns.record_places import Integers, Octets, RecordPlaces, find_records
from tidelog.records.record import check_headers, records_of, scan_records

GROUP_BYTES: Final = 8 * 1024 * 1024
"""The number of decompressed bytes that become one Arrow batch. An Arrow batch holds at least one record
batch.
"""
GROUP_ROWS: Final = 65_536

_INT64: Final = np.iinfo(np.int64)
_US_PER_MS: Final = 1_000
_FIRST_MS, _LAST_MS = _INT64.min // _US_PER_MS + 1, _INT64.max // _US_PER_MS


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Limits of the rows: offsets [start, end), and times in microseconds, including both ends."""

    start_offset: int = 0
    end_offset: int = _INT64.max
    first_timestamp_us: int | None = None
    last_timestamp_us: int | None = None

    def within(self, start_offset: int, end_offset: int) -> RowBounds:
        """Returns the same limits, narrowed to the offsets [start, end)."""
        start, end = max(self.start_offset, start_offset), min(self.end_offset, end_offset)
        return replace(self, start_offset=start, end_offset=end)


ALL_ROWS: Final = RowBounds()


class Group(NamedTuple):
    """Batches that are decoded together. `data` holds the records of each batch from `starts` to `ends`."""

    buffer: Buffer
    data: Buffer
    batches: Sequence[tuple[int, BatchHeader]]
    starts: Sequence[int]
    ends: Sequence[int]


class Rows(NamedTuple):
    """`batches` holds the number of each row's batch in the group."""

    places: RecordPlaces
    batches: Integers
    offsets: Integers
    timestamps_us: Integers


def grouped(buffer: Buffer, batches: Iterable[tuple[int, BatchHeader]]) -> Iterator[Group]:
    """Groups batches. Uncompressed records stay where they are, and decompressed ones get a buffer of their
    own.
    """
    chosen: list[tuple[int, BatchHeader]] = []
    starts: list[int] = []
    ends: list[int] = []
    unpacked: list[memoryview] | None = None
    size_bytes = rows = 0

    def finished() -> Group:
        data = buffer if unpacked is None else b"".join(unpacked)
        return Group(buffer, data, tuple(chosen), tuple(starts), tuple(ends))

    for position, header in batches:
        if header.record_count < 0:
            raise CorruptBatchError(f"a batch of {header.record_count} records")
        is_packed = bool(header.compression)
        changes = bool(chosen) and is_packed != (unpacked is not None)
        if chosen and (changes or size_bytes >= GROUP_BYTES or rows >= GROUP_ROWS):
            yield finished()
            chosen, starts, ends, unpacked, size_bytes, rows = [], [], [], None, 0, 0
        body = records_of(buffer, header, position)
        if is_packed:
            unpacked = unpacked or []
            unpacked.append(body)
            starts.append(size_bytes)
        else:
            starts.append(position + header.size_bytes - len(body))
        ends.append(starts[-1] + len(body))
        size_bytes += len(body)
        rows += header.record_count
        chosen.append((position, header))
    if chosen:
        yield finished()


def decode_rows(data: Octets, group: Group, bounds: RowBounds) -> Rows:
    headers = [header for _, header in group.batches]
    counts = np.array([header.record_count for header in headers], np.int64)
    places = find_records(data, np.array(group.starts, np.int64), np.array(group.ends, np.int64), counts)
    batches: Integers = np.repeat(np.arange(len(headers)), counts)
    base_offsets = np.array([header.base_offset for header in headers], np.int64)
    offsets = base_offsets[batches] + places.offset_deltas
    timestamps_us = _timestamps_us(headers, batches, places.timestamp_deltas)
    inside = (offsets >= bounds.start_offset) & (offsets < bounds.end_offset)
    if bounds.first_timestamp_us is not None:
        inside &= timestamps_us >= bounds.first_timestamp_us
    if bounds.last_timestamp_us is not None:
        inside &= timestamps_us <= bounds.last_timestamp_us
    if inside.all():
        return Rows(places, batches, offsets, timestamps_us)
    kept = np.flatnonzero(inside)
    return Rows(places.chosen(kept), batches[kept], offsets[kept], timestamps_us[kept])


def _timestamps_us(headers: Sequence[BatchHeader], batches: Integers, deltas: Integers) -> Integers:
    """Returns the timestamps. With LogAppendTime, the batch's greatest timestamp is that of all its
    records.
    """
    base = np.array(
        [header.max_timestamp if header.is_log_append_time else header.base_timestamp for header in headers],
        np.int64,
    )
    is_append_time = np.array([header.is_log_append_time for header in headers])
    if is_append_time.any():
        deltas = np.where(is_append_time[batches], 0, deltas)
    # A client's timestamp may be outside Spark's range. It becomes the nearest possible value.
    times: Integers = (base[batches] + deltas).clip(_FIRST_MS, _LAST_MS) * _US_PER_MS
    return times


def find_corrupt(group: Group) -> None:
    """Raises the error of the first batch that cannot be decoded record by record."""
    for position, header in group.batches:
        try:
            body = records_of(group.buffer, header, position)
            for span in scan_records(body, header.record_count):
                check_headers(body, span.headers_start, span.end)
        except ValueError as error:
            raise type(error)(f"in the batch at offset {header.base_offset}: {error}") from error
