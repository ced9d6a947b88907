"""The columnar decoder gives the same result as the record-by-record decoder, for good and for damaged
bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from tidelog.pipeline.segments.source import spark_schema
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.columns import record_places, rows
from tidelog.records.columns.arrow import COLUMNS, OMITTED_HEADERS, ColumnarDecoder
from tidelog.records.columns.rows import RowBounds
from tidelog.records.compression import Compression
from tidelog.records.record import Record, iterate_records

NULLABLE = st.none() | st.binary(max_size=200)
NAMES = st.text(max_size=8)
HEADERS = st.lists(st.tuples(NAMES, NULLABLE), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 2**40)
CODECS = st.sampled_from(list(Compression))
LAST_MS = (2**63 - 1) // 1000


@st.composite
def batch_lists(draw: st.DrawFn) -> list[bytearray]:
    offset = draw(st.integers(0, 2**40))
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        records = []
        for _ in range(draw(st.integers(1, 8))):
            records.append(Record(offset, draw(TIMESTAMPS), draw(NULLABLE), draw(NULLABLE), draw(HEADERS)))
            offset += draw(st.integers(1, 300))
        append_time = draw(st.none() | TIMESTAMPS)
        batches.append(build_batch(records, compression=draw(CODECS), log_append_time_ms=append_time))
    return batches


def decoded(
    data: bytes | bytearray, bounds: RowBounds | None = None, columns: Iterable[str] = COLUMNS
) -> list[dict[str, Any]]:
    decoder = ColumnarDecoder("flights", 3, tuple(columns))
    tables = []
    for batch in decoder.decode(data, iterate_headers(data), bounds or RowBounds()):
        batch.validate(full=True)
        tables.append(batch)
    table = pa.Table.from_batches(tables, schema=decoder.schema)
    if "timestamp" in table.column_names:  # a datetime cannot hold all of them
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table.column("timestamp").cast(pa.int64()))
    return table.to_pylist()


def expected(data: bytes | bytearray) -> list[dict[str, Any]]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "flights",
            "partition": 3,
            "offset": record.offset,
            "timestamp": min(record.timestamp, LAST_MS) * 1000,
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for position, header in iterate_headers(data)
        for record in iterate_records(data, position)
    ]


@settings(max_examples=60)
@given(batch_lists())
def test_rows_are_those_of_the_record_decoder(batches: list[bytearray]) -> None:
    data = b"".join(batches)
    assert decoded(data) == expected(data)


@settings(max_examples=40)
@given(batch_lists(), st.data())
def test_bounds_leave_out_rows(batches: list[bytearray], choice: st.DataObject) -> None:
    data = b"".join(batches)
    rows = expected(data)
    offsets = st.sampled_from([row["offset"] for row in rows])
    times = st.none() | st.sampled_from([row["timestamp"] for row in rows])
    bounds = RowBounds(*(choice.draw(strategy) for strategy in (offsets, offsets, times, times)))
    first, last = bounds.first_timestamp_us, bounds.last_timestamp_us
    assert decoded(data, bounds) == [
        row
        for row in rows
        if bounds.start_offset <= row["offset"] < bounds.end_offset
        and (first is None or row["timestamp"] >= first)
        and (last is None or row["timestamp"] <= last)
    ]


@settings(max_examples=25)
@given(batch_lists(), st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True))
def test_only_requested_columns_are_decoded(batches: list[bytearray], columns: list[str]) -> None:
    data = b"".join(batches)
    assert decoded(data, columns=columns) == [{name: row[name] for name in columns} for row in expected(data)]


def outcome(decode: Any, data: bytes | bytearray) -> Any:
    try:
        return decode(data)
    except ValueError:
        return ValueError


@settings(max_examples=150)
@given(batch_lists(), st.data())
def test_damaged_bytes_are_refused_where_the_record_decoder_refuses(
    batches: list[bytearray], choice: st.DataObject
) -> None:
    data = bytearray(b"".join(batches))
    for _ in range(choice.draw(st.integers(1, 3))):
        # The lengths of batches stay intact, because they are the segment walk's concern.
        positions = [position for position, _ in iterate_headers(data)]
        places = [at for at in range(len(data)) if not any(start <= at < start + 17 for start in positions)]
        data[choice.draw(st.sampled_from(places))] = choice.draw(st.integers(0, 255))
    seen = outcome(decoded, data)
    if seen is not ValueError:
        assert without_numbers(seen) == without_numbers([row for row in expected(data) if is_within(row)])
    else:
        assert outcome(expected, data) is ValueError


def is_within(row: dict[str, Any]) -> bool:
    """Returns whether an offset, which a damaged varint may have made too large or negative, lies within the
    bounds of the decoder after it was cut to 64 bits.
    """
    return (row["offset"] + 2**63) % 2**64 - 2**63 in range(RowBounds().start_offset, RowBounds().end_offset)


def without_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records without numbers that a damaged varint made too large, which are cut to 64 bits
    here.
    """
    return [{**row, "offset": 0, "timestamp": 0} for row in rows]


def many(sizes: Sequence[int], headers: Sequence[int] = (0,), start: int = 0) -> bytearray:
    """Returns a batch with a record of each size."""
    source = random.Random(len(sizes))
    return build_batch(
        Record(
            start + number,
            1_000 + number,
            None if number % 3 else source.randbytes(number % 90),
            source.randbytes(size),
            tuple((f"h{at}", bytes(at)) for at in range(headers[number % len(headers)])),
        )
        for number, size in enumerate(sizes)
    )


@pytest.mark.parametrize("batch_count", [1, 40, 60, 200])
def test_wide_and_long_groups(batch_count: int) -> None:
    """Many batches are walked side by side, few batches one by one, and the longest ones alone to their
    ends.
    """
    source = random.Random(batch_count)
    data = bytearray()
    start = 0
    for number in range(batch_count):
        count = 900 if number == 7 else source.randrange(1, 30)
        sizes = [source.choice([0, 1, 63, 64, 200, 9_000 if number < 3 else 5]) for _ in range(count)]
        data += many(sizes, headers=(0, 1, 5, 0, 120 if number == 3 else 2), start=start)
        start += count
    assert decoded(data) == expected(data)


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_BYTES", 10_000)
    batches = [
        build_batch(
            [Record(10 * number + at, 5, b"k", bytes(1_000)) for at in range(5)],
            compression=Compression.ZSTD if number % 7 else Compression.NONE,
        )
        for number in range(40)
    ]
    data = b"".join(batches)
    decoder = ColumnarDecoder("flights", 3)
    sizes = [batch.nbytes for batch in decoder.decode(data, iterate_headers(data), RowBounds())]
    assert max(sizes) < 20_000
    assert decoded(data) == expected(data)


def test_header_names_that_are_not_utf8_are_readable() -> None:
    good = build_batch([Record(0, 5, b"k", b"v", (("abc", b"x"), ("n", None)))])
    assert b"abc" in good
    damaged = good.replace(b"abc", b"a\xffc")
    assert decoded(damaged) == expected(damaged)
    assert decoded(damaged)[0]["headers"][0]["key"] == "a\ufffdc"


def test_types_are_what_spark_expects() -> None:
    for columns in (tuple(COLUMNS), ("offset", "headers")):
        assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(
            ColumnarDecoder("t", 0, columns).schema
        )


@given(batch_lists(), st.integers(1, 3))
def test_headers_above_the_limit_are_counted_in_a_mark(batches: list[bytearray], limit: int) -> None:
    data = b"".join(batches)
    expected = []
    for row in decoded(data, columns=["offset", "headers"]):
        headers = row["headers"] or []
        mark = {"key": OMITTED_HEADERS, "value": b"%d" % (len(headers) - limit)}
        expected.append([*headers[:limit], mark] if len(headers) > limit else headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_places, "MAX_HEADERS", limit)
        found = decoded(data, columns=["offset", "headers"])
    assert [row["headers"] or [] for row in found] == expected


def test_headers_of_many_records_share_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tuple((f"{number}", None) for number in range(9))
    batch = build_batch([Record(number, 1, None, None, headers) for number in range(100)])
    monkeypatch.setattr(record_places, "FREE_HEADERS", 400)
    monkeypatch.setattr(record_places, "LEAST_BYTES_A_HEADER", 1_000_000)
    for row in decoded(batch, columns=["headers"]):
        assert len(row["headers"]) == 4 + 1
        assert row["headers"][4] == {"key": OMITTED_HEADERS, "value": b"5"}
