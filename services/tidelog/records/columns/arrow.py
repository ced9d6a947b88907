"""Decodes record batches into Arrow record batches, column by column.

Keys and values are never touched one by one. An Arrow binary column consists of offsets into one buffer.
Offsets into the records' own buffer that alternate between gap and value make a column in which every second
element is a value, and one `take` copies those out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.records.batch import BatchHeader, Buffer
from tidelog.records.columns.record_places import HeaderPlaces, Integers, Octets, find_headers
from tidelog.records.columns.rows import (
    Group,
    RowBounds,
    Rows,
    decode_rows,
    find_corrupt,
    grouped,
)
from tidelog.records.record import CorruptRecordError

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns of Spark's Kafka connector (with includeHeaders), in its order."""

OMITTED_HEADERS: Final = "tidelog.omitted.headers"
"""The key of the last header of a record with more headers than are decoded. Its value is their number."""


@dataclass(frozen=True, slots=True)
class ColumnarDecoder:
    """`columns` names the wanted COLUMNS in their order. Other columns cost nothing."""

    topic: str
    partition: int
    columns: tuple[str, ...] = tuple(COLUMNS)
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        schema = pa.schema([(name, COLUMNS[name]) for name in self.columns])
        object.__setattr__(self, "schema", schema)

    def decode(
        self, buffer: Buffer, batches: Iterable[tuple[int, BatchHeader]], bounds: RowBounds
    ) -> Iterator[pa.RecordBatch]:
        """Decodes the records of `batches`, given as (position in `buffer`, header), that are within
        `bounds`.

        Raises CorruptBatchError, CompressionDataError or CorruptRecordError, which are all ValueErrors.
        """
        for group in grouped(buffer, batches):
            columns = self._decode_group(group, bounds)
            if columns.num_rows:
                yield columns

    def _decode_group(self, group: Group, bounds: RowBounds) -> pa.RecordBatch:
        data = np.frombuffer(group.data, np.uint8)
        try:
            rows = decode_rows(data, group, bounds)
            arrays = [_BUILDERS[name](self, group, data, rows) for name in self.columns]
        except CorruptRecordError:
            find_corrupt(group)
            raise
        if not arrays:
            raise ValueError("no column is requested")
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _key(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    return binary_column(group.data, rows.places.key_starts, rows.places.key_lengths)


def _value(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    return binary_column(group.data, rows.places.value_starts, rows.places.value_lengths)


def _topic(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    name, count = decoder.topic.encode(), len(rows.offsets)
    ends: Integers = np.arange(count + 1, dtype=np.int32) * len(name)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(name * count)])


def _partition(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    return pa.array(np.full(len(rows.offsets), decoder.partition, np.int32))


def _offset(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    return pa.array(rows.offsets)


def _timestamp(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(rows.timestamps_us))]
    return pa.Array.from_buffers(COLUMNS["timestamp"], len(rows.timestamps_us), buffers)


def _timestamp_type(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    types = np.array([header.is_log_append_time for _, header in group.batches], np.int32)
    return pa.array(types[rows.batches])


def _headers(decoder: ColumnarDecoder, group: Group, data: Octets, rows: Rows) -> pa.Array:
    """Returns the headers. As in the connector, a record without headers has null.

    A record whose headers were not all decoded gets one more, OMITTED_HEADERS with the number of the others.
    """
    found = find_headers(data, rows.places)
    count = len(rows.offsets)
    if not found.counts.any():
        return pa.nulls(count, HEADERS_TYPE)
    keys = _text(binary_column(group.data, found.key_starts, found.key_lengths))
    values = binary_column(group.data, found.value_starts, found.value_lengths)
    counts = found.counts
    if found.omitted.any():
        keys, values, counts = _with_marks(keys, values, found)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))
    ends: Integers = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pa.Array.from_buffers(
        HEADERS_TYPE, count, [_validity(counts > 0), pa.py_buffer(ends)], children=[pairs]
    )


def _with_marks(keys: pa.Array, values: pa.Array, found: HeaderPlaces) -> tuple[pa.Array, pa.Array, Integers]:
    """Appends OMITTED_HEADERS to the headers of each record from which some are omitted."""
    rows = np.flatnonzero(found.omitted)
    marks = [b"%d" % count for count in found.omitted[rows].tolist()]
    places: Integers = np.insert(
        np.arange(len(keys)), np.cumsum(found.counts)[rows], len(keys) + np.arange(len(rows), dtype=np.int64)
    )
    keys = pa.concat_arrays([keys, pa.array([OMITTED_HEADERS] * len(rows), keys.type)]).take(pa.array(places))
    values = pa.concat_arrays([values, pa.array(marks, values.type)]).take(pa.array(places))
    return keys, values, found.counts + (found.omitted > 0)


_BUILDERS: Final[dict[str, Callable[[ColumnarDecoder, Group, Octets, Rows], pa.Array]]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
}


def binary_column(data: Buffer, starts: Integers, lengths: Integers) -> pa.Array:
    """Returns the bytes of `data` from each of the rising `starts` on, with null where a length is -1."""
    count = len(starts)
    is_null = lengths < 0
    if is_null.all():
        return pa.nulls(count, pa.binary())
    bounds: Integers = np.zeros(2 * count + 1, np.int32)
    bounds[1::2] = starts
    np.add(starts, np.maximum(lengths, 0), out=bounds[2::2], casting="unsafe")
    gaps_and_values = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    values = gaps_and_values.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
    if not is_null.any():
        return values
    return pa.Array.from_buffers(pa.binary(), count, [_validity(~is_null), *values.buffers()[1:]])


def _text(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", errors="replace") for key in column.to_pylist()], pa.string())


def _validity(is_valid: Any) -> pa.Buffer:  # an array of NumPy, as in varints.py
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
