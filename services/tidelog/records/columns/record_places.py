"""Finds the records of many batches in one buffer, and the parts of each record, with NumPy instead of a loop
over records.

A record is `length varint, attributes int8, timestamp_delta varlong, offset_delta varint, key_length varint,
key, value_length varint, value, header_count varint, headers`. See tidelog.records.record.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from tidelog.records.record import CorruptRecordError
from tidelog.records.record_walk import find_ends
from tidelog.records.varint import CorruptVarintError, read_varint

_MAX_BITS: Final = 70
_ONE: Final = np.uint64(1)
_LOW_BITS: Final = np.uint64(0x7F)

# These are NDArray[np.int64] and NDArray[np.uint8]. The aliases let mypy check the code without NumPy.
Integers: TypeAlias = Any
Octets: TypeAlias = Any

MAX_HEADERS: Final = 10_000
"""The number of headers of a record that are decoded."""
LEAST_BYTES_A_HEADER: Final = 8
"""If the headers of many records have fewer bytes on average, each record gets its share of this many."""
FREE_HEADERS: Final = 1_000_000
"""The number of headers of all records up to which MAX_HEADERS is the only limit."""
_WORTH_A_VECTOR: Final = 48
_NO_FIT: Final = "a record has lengths that do not fit"


class RecordPlaces(NamedTuple):
    """Arrays with one element for each record, in the order of the buffer. A length of -1 means null."""

    timestamp_deltas: Integers
    offset_deltas: Integers
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers
    headers_starts: Integers
    ends: Integers

    def chosen(self, rows: Integers) -> RecordPlaces:
        return RecordPlaces._make(column[rows] for column in self)


class HeaderPlaces(NamedTuple):
    """`counts` has the number of decoded headers of each record, and `omitted` the number of the others. The
    other arrays have one element for each decoded header.
    """

    counts: Integers
    omitted: Integers
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers


def find_records(data: Octets, starts: Integers, ends: Integers, counts: Integers) -> RecordPlaces:
    """Finds the records of batches. Batch i has `counts[i]` records in `data` from `starts[i]` to `ends[i]`,
    in rising order.

    Raises CorruptRecordError. To find the corrupt batch, the caller decodes the batches one by one.
    """
    try:
        contents, record_ends = _bounds(data, starts, ends, counts)
        timestamp_deltas, places = read_varints(data, contents + 1)
        offset_deltas, places = read_varints(data, places)
        key_lengths, key_starts = read_varints(data, places)
        bad = (key_lengths < -1) | (key_lengths > record_ends - key_starts)
        places = key_starts + np.where(bad, 0, np.maximum(key_lengths, 0))
        value_lengths, value_starts = read_varints(data, places)
        bad |= (value_lengths < -1) | (value_lengths > record_ends - value_starts)
        headers_starts = value_starts + np.where(bad, 0, np.maximum(value_lengths, 0))
    except UnreadableVarintError as error:
        raise CorruptRecordError(str(error)) from error
    # Places only rise, so the last check covers the earlier ones.
    if (bad | (headers_starts >= record_ends)).any():
        raise CorruptRecordError(_NO_FIT)
    return RecordPlaces(
        timestamp_deltas,
        offset_deltas,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        headers_starts,
        record_ends,
    )


def find_headers(data: Octets, places: RecordPlaces) -> HeaderPlaces:
    """Finds the headers of all records, of a record with very many only the first ones. Raises
    CorruptRecordError.
    """
    try:
        counts, positions = read_varints(data, places.headers_starts)
        if ((counts < 0) | (counts > places.ends - positions)).any():
            raise CorruptRecordError("a record has more headers than bytes")
        decoded = np.minimum(counts, _header_limit(counts, len(data)))
        found = _walk_headers(data, decoded, positions, places.ends)
    except UnreadableVarintError as error:
        raise CorruptRecordError(str(error)) from error
    omitted = counts - decoded
    # Now `positions` is after each record's last decoded header.
    if ((positions != places.ends) & (omitted == 0)).any():
        raise CorruptRecordError("bytes follow a record's headers")
    return found._replace(omitted=omitted)


def _header_limit(counts: Integers, size_bytes: int) -> int:
    """Returns the number of headers of a record to decode, so that the memory for all of them is limited."""
    most = max(FREE_HEADERS, size_bytes // LEAST_BYTES_A_HEADER)
    if int(np.minimum(counts, MAX_HEADERS).sum()) <= most:
        return MAX_HEADERS
    return max(1, min(MAX_HEADERS, most // int(np.count_nonzero(counts))))


def _bounds(data: Octets, starts: Integers, ends: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Returns (position after the length, end) of each record.

    The start of a record is known only from its predecessor. The first records of all batches are therefore
    found together, then the second ones, and so on. The few longest batches are walked to their ends one by
    one.
    """
    total = int(counts.sum())
    if (counts > ends - starts).any():  # checked before memory is allocated for them
        raise CorruptRecordError(_NO_FIT)
    contents: Integers = np.empty(total, np.int64)
    record_ends: Integers = np.empty(total, np.int64)
    first_rows = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    positions, limits, rows, left = starts[order], ends[order], first_rows[order], counts[order]
    rising = left[::-1]
    step = 0
    while True:
        width = len(left) - int(np.searchsorted(rising, step, side="right"))
        if width < _WORTH_A_VECTOR:
            break
        lengths, places = read_varints(data, positions[:width])
        if ((lengths <= 0) | (lengths > limits[:width] - places)).any():
            raise CorruptRecordError(_NO_FIT)
        contents[rows[:width] + step] = places
        places = places + lengths
        record_ends[rows[:width] + step] = places
        positions[:width] = places
        step += 1
    for batch in range(width):
        first, count = int(rows[batch]) + step, int(left[batch]) - step
        found = _walk(data, int(positions[batch]), int(limits[batch]), count)
        contents[first : first + count], record_ends[first : first + count] = found
    last_ends = np.where(counts > 0, record_ends[first_rows + counts - 1], starts) if total else starts
    if (last_ends != ends).any():
        raise CorruptRecordError("bytes follow the records of a batch")
    return contents, record_ends


def _walk(data: Octets, position: int, limit: int, count: int) -> tuple[Integers, Integers]:
    found = find_ends(data[position:limit].tobytes(), count)
    if found is None:
        raise CorruptRecordError(_NO_FIT)
    ends = np.array(found, np.int64) + position
    _, contents = read_varints(data, np.concatenate((np.array([position]), ends[:-1])))
    return contents, ends


def _walk_headers(data: Octets, counts: Integers, positions: Integers, ends: Integers) -> HeaderPlaces:
    """Moves `positions` after each record's headers."""
    total = int(counts.sum())
    found = HeaderPlaces(counts, np.zeros_like(counts), *(np.empty(total, np.int64) for _ in range(4)))
    first_rows = np.cumsum(counts) - counts
    with_headers = np.flatnonzero(counts)
    with_headers = with_headers[np.argsort(-counts[with_headers], kind="stable")]
    rising = counts[with_headers][::-1]
    step = 0
    while True:
        width = len(with_headers) - int(np.searchsorted(rising, step, side="right"))
        if width < _WORTH_A_VECTOR:
            break
        records = with_headers[:width]
        rows, limits = first_rows[records] + step, ends[records]
        key_lengths, key_starts = read_varints(data, positions[records])
        bad = (key_lengths < 0) | (key_lengths > limits - key_starts)
        places = key_starts + np.where(bad, 0, key_lengths)
        value_lengths, value_starts = read_varints(data, places)
        bad |= (value_lengths < -1) | (value_lengths > limits - value_starts)
        if bad.any():
            raise CorruptRecordError("a record's headers have lengths that do not fit")
        found.key_starts[rows], found.key_lengths[rows] = key_starts, key_lengths
        found.value_starts[rows], found.value_lengths[rows] = value_starts, value_lengths
        positions[records] = value_starts + np.maximum(value_lengths, 0)
        step += 1
    view = memoryview(data)
    for record in with_headers[:width].tolist():
        first, count = int(first_rows[record]) + step, int(counts[record]) - step
        places_of_one = _walk_headers_of_one(view, int(positions[record]), int(ends[record]), count)
        rows = slice(first, first + count)
        (
            found.key_starts[rows],
            found.key_lengths[rows],
            found.value_starts[rows],
            found.value_lengths[rows],
        ) = places_of_one[:4]
        positions[record] = places_of_one[4]
    return found


def _walk_headers_of_one(
    data: memoryview, position: int, end: int, count: int
) -> tuple[list[int], list[int], list[int], list[int], int]:
    key_starts, key_lengths, value_starts, value_lengths = [], [], [], []
    try:
        for _ in range(count):
            length, position = read_varint(data, position)
            if not 0 <= length <= end - position:
                raise CorruptRecordError("a record's headers have lengths that do not fit")
            key_starts.append(position)
            key_lengths.append(length)
            length, position = read_varint(data, position + length)
            if not -1 <= length <= end - position:
                raise CorruptRecordError("a record's headers have lengths that do not fit")
            value_starts.append(position)
            value_lengths.append(length)
            position += max(length, 0)
    except CorruptVarintError as error:
        raise CorruptRecordError("a record's headers are cut off") from error
    return key_starts, key_lengths, value_starts, value_lengths, position


class UnreadableVarintError(ValueError):
    """A varint has more than 10 bytes."""


def read_varints(data: Octets, positions: Integers) -> tuple[Integers, Integers]:
    """Returns (values, positions after them) of the varints at `positions`.

    The caller checks the bounds. Beyond the end of `data`, the last byte is read repeatedly. Raises
    UnreadableVarintError.
    """
    octets = data.take(positions, mode="clip")
    zigzag = octets.astype(np.uint64)
    behind = positions + 1
    rest = np.flatnonzero(octets > 0x7F)
    if rest.size:
        zigzag &= _LOW_BITS
        shift = 7
        whole = rest.size == octets.size
        while rest.size:
            if shift >= _MAX_BITS:
                raise UnreadableVarintError("a varint is longer than 64 bits")
            # In the common case, all varints have two bytes, and the rest need not be gathered.
            octets = data.take(behind if whole else behind[rest], mode="clip")
            part = (octets & 0x7F).astype(np.uint64) << np.uint64(shift)
            if whole:
                zigzag |= part
                behind += 1
            else:
                zigzag[rest] |= part
                behind[rest] += 1
            more = octets > 0x7F
            whole = whole and bool(more.all())
            rest = rest[more]
            shift += 7
    values = (zigzag >> _ONE) ^ (np.uint64(0) - (zigzag & _ONE))
    return values.view(np.int64), behind
