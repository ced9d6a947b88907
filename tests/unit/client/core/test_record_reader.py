"""`read_plain_records` agrees with `iterate_records`, or leaves the batch to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.record_reader import read_plain_records
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records, records_of

PLACE = TopicPartition("t", 0)
NULLABLE = st.none() | st.binary(max_size=200) | st.just(b"x" * 9_000)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 8))):
        headers = draw(st.sampled_from([(), (), (("h", b"v"),)]))
        records.append(Record(offset, draw(st.integers(0, 2**50)), draw(NULLABLE), draw(NULLABLE), headers))
        offset += draw(st.integers(1, 1_000))
    return build_batch(records, log_append_time_ms=draw(st.none() | st.integers(0, 2**50)))


def read(batch: bytearray) -> list[Record] | None:
    header = parse_header(batch)
    found = read_plain_records(
        PLACE,
        bytes(records_of(batch, header)),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else None,
    )
    if found is None:
        return None
    return [
        Record(record.offset, record.timestamp, record.key, record.value, record.headers) for record in found
    ]


@given(batches())
def test_it_reads_what_iterate_records_reads(batch: bytearray) -> None:
    expected = list(iterate_records(batch))
    found = read(batch)
    if any(record.headers for record in expected):
        assert found is None
    else:
        assert found == expected


@given(batches(), st.data())
def test_it_accepts_no_damage_that_iterate_records_refuses(batch: bytearray, data: st.DataObject) -> None:
    position = data.draw(st.integers(61, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    found = read(batch)
    if found is not None:
        assert found == list(iterate_records(batch))


def test_a_cut_batch_is_left_to_iterate_records() -> None:
    batch = build_batch([Record(0, 1, None, b"value")])
    header = parse_header(batch)
    body = bytes(records_of(batch, header))
    for length in range(len(body)):
        assert read_plain_records(PLACE, body[:length], 1, 0, 1, None) is None
    assert read_plain_records(PLACE, body, 2, 0, 1, None) is None
    with pytest.raises(ValueError):
        list(iterate_records(batch[:-1]))
