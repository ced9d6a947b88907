"""Records that are taken in pieces are those that are taken one by one, as objects and as columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.consuming.consumed_partition import ConsumedPartition, FetchedBatches, PositionState
from tidelog.client.core.consuming.records import ConsumerRecord, DeserializationError
from tidelog.client.serializers import json_deserializer
from tidelog.model.topics import TopicPartition
from tidelog.records import record as record_module
from tidelog.records.batch import iterate_headers
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record, iterate_records
from tidelog.records.record_writer import Header

PLACE = TopicPartition("t", 3)
NULLABLE = st.none() | st.binary(max_size=100)


@st.composite
def fetches(draw: st.DrawFn) -> memoryview:
    offset, raw = draw(st.integers(0, 1_000)), bytearray()
    for _ in range(draw(st.integers(1, 4))):
        records = []
        for _ in range(draw(st.integers(1, 6))):
            headers = draw(st.sampled_from([(), (), (("h", b"v"),)]))
            time_ms = draw(st.integers(0, 2**40))
            records.append(Record(offset, time_ms, draw(NULLABLE), draw(NULLABLE), headers))
            offset += draw(st.integers(1, 3))
        codec = draw(st.sampled_from((Compression.NONE, Compression.NONE, Compression.ZSTD)))
        raw += build_batch(records, compression=codec)
    return memoryview(bytes(raw))


def partition_with(raw: memoryview, start: int) -> ConsumedPartition:
    partition = ConsumedPartition(PLACE, itertools.count())
    partition.seek(start)
    partition.fetched.append(FetchedBatches(PLACE, raw, start, []))
    assert partition.state is PositionState.KNOWN
    return partition


def parts(record: ConsumerRecord[Any, Any] | Record) -> Record:
    value = record.value
    return Record(record.offset, record.timestamp, record.key, value, record.headers)


def records_from(raw: memoryview, start: int) -> list[Record]:
    return [
        record
        for position, _ in iterate_headers(raw)
        for record in iterate_records(raw, position)
        if record.offset >= start
    ]


@given(fetches(), st.integers(0, 8), st.lists(st.integers(1, 4), max_size=4))
def test_a_piece_has_the_records_after_those_that_were_taken(
    raw: memoryview, skipped: int, counts: list[int]
) -> None:
    start = next(iterate_headers(raw))[1].base_offset + skipped
    partition = partition_with(raw, start)
    found = []
    for count in counts:
        found += [parts(record) for record in partition.take(count) or ()]
        decoded = partition.take_decoded()
        found += [] if decoded is None else [parts(decoded)]
    batch = partition.take_batch()
    if batch is not None:
        left = [parts(record) for record in batch.records()]
        assert len(left) == len(batch) > 0
        found += left
        assert batch.next_offset == partition.position
    assert found == records_from(raw, start)
    assert partition.take_batch() is None and partition.take(1) is None
    *_, (_, last) = iterate_headers(raw)
    assert partition.position == max(start, last.last_offset + 1)


@given(fetches(), st.integers(0, 8))
def test_columns_have_the_same_records(raw: memoryview, skipped: int) -> None:
    pytest.importorskip("pyarrow")
    start = next(iterate_headers(raw))[1].base_offset + skipped
    batch = partition_with(raw, start).take_batch()
    if batch is None:
        assert not records_from(raw, start)
        return
    records = batch.records()
    rows = batch.to_arrow().to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in records
    ]
    assert [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in rows] == [
        list(record.headers) for record in records
    ]
    columns = batch.to_numpy()
    assert columns.offsets.tolist() == [record.offset for record in records]
    assert columns.timestamps.tolist() == [record.timestamp for record in records]
    values = [
        None if length < 0 else columns.data[start : start + length].tobytes()
        for start, length in zip(columns.value_starts, columns.value_lengths, strict=True)
    ]
    assert values == [record.value for record in records]
    keys = [
        None if length < 0 else columns.data[start : start + length].tobytes()
        for start, length in zip(columns.key_starts, columns.key_lengths, strict=True)
    ]
    assert keys == [record.key for record in records]


def test_the_records_before_a_damaged_batch_come_first() -> None:
    good, bad = build_batch([Record(0, 1, None, b"a")]), build_batch([Record(1, 1, None, b"b")])
    bad[-1] ^= 1
    partition = partition_with(memoryview(bytes(good + bad)), 0)
    batch = partition.take_batch()
    assert batch is not None and [record.value for record in batch] == [b"a"]
    assert partition.position == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="offset 1 has a wrong CRC"):
            partition.take_batch()
    with pytest.raises(ValueError, match="offset 1 has a wrong CRC"):
        partition.take(1)


def test_a_piece_leaves_out_aborted_transactions() -> None:
    aborted = build_batch([Record(0, 1, None, b"a")], producer_id=7, producer_epoch=0, is_transactional=True)
    good = build_batch([Record(1, 1, None, b"b")])
    partition = ConsumedPartition(PLACE, itertools.count())
    partition.seek(0)
    partition.fetched.append(FetchedBatches(PLACE, memoryview(bytes(aborted + good)), 0, [(0, 7)]))
    batch = partition.take_batch()
    assert batch is not None and len(batch) == 1
    assert [record.value for record in batch] == [b"b"]


def test_deserializers_read_each_record_of_a_piece() -> None:
    raw = build_batch([Record(0, 1, None, b"1"), Record(1, 1, None, b"{")])
    batch = partition_with(memoryview(bytes(raw)), 0).take_batch()
    assert batch is not None
    first, second = batch.set_deserializers(None, json_deserializer)
    assert first.value == 1 and first.value_bytes == b"1"
    with pytest.raises(DeserializationError, match="t-3 offset 1"):
        _ = second.value


@pytest.mark.parametrize(("limit", "kept"), [(None, 3), (0, 0), (2, 2)])
def test_a_reader_gets_the_headers_that_it_wants(limit: int | None, kept: int) -> None:
    headers = (("a", b"1"), ("b", None), ("c", b"3"))
    raw = build_batch([Record(0, 1, None, b"x", headers), Record(1, 1, None, b"y")])
    batch = partition_with(memoryview(bytes(raw)), 0).take_batch()
    assert batch is not None and batch.size_bytes == len(raw)
    first, second = batch.iterate(max_headers=limit)
    assert (first.headers, first.omitted_headers) == (headers[:kept], 3 - kept)
    assert (second.headers, second.omitted_headers) == ((), 0)


def test_counting_from_the_middle_of_a_batch_builds_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Header] = []
    iterate_headers = record_module.iterate_headers

    def noted(*place: Any) -> Iterator[Header]:
        for header in iterate_headers(*place):
            built.append(header)
            yield header

    monkeypatch.setattr(record_module, "iterate_headers", noted)
    raw = build_batch([Record(number, 1, None, b"x", (("a", b"1"),)) for number in range(3)])
    batch = partition_with(memoryview(bytes(raw)), 1).take_batch()
    assert batch is not None and len(batch) == 2
    assert built == []
