from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    CorruptBatchError,
    assign_offset_and_epoch,
    crc_matches,
    iterate_headers,
    parse_header,
    set_log_append_time,
)
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records

INT64 = st.integers(0, 2**63 - 1)
BATCHES = st.builds(
    lambda values, offset, timestamp: build_batch(
        [Record(offset + i, timestamp, None, value) for i, value in enumerate(values)]
    ),
    st.lists(st.binary(max_size=30), min_size=1, max_size=5),
    st.integers(0, 2**62),
    st.integers(0, 2**60),
)


@given(BATCHES, INT64, st.integers(0, 2**31 - 1), st.binary(max_size=9))
def test_offset_and_epoch_are_set_in_place_outside_the_crc(
    batch: bytearray, base_offset: int, leader_epoch: int, before: bytes
) -> None:
    header = parse_header(batch)
    buffer = bytearray(before) + batch
    assign_offset_and_epoch(memoryview(buffer), len(before), base_offset, leader_epoch)
    changed = parse_header(buffer, len(before))
    assert changed == header._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    assert crc_matches(changed, buffer, len(before))
    assert buffer[len(before) + BATCH_HEADER_BYTES :] == batch[BATCH_HEADER_BYTES:]


@given(BATCHES, INT64, st.binary(max_size=9), st.binary(max_size=9))
def test_log_append_time_is_set_in_place(batch: bytearray, now_ms: int, before: bytes, after: bytes) -> None:
    buffer = bytearray(before) + batch + after
    header = set_log_append_time(memoryview(buffer), parse_header(batch), len(before), now_ms)
    assert header == parse_header(buffer, len(before))
    assert header.is_log_append_time
    assert crc_matches(header, buffer, len(before))
    assert {record.timestamp for record in iterate_records(buffer, len(before))} == {now_ms}
    assert buffer.endswith(after)


@given(st.lists(BATCHES, max_size=4), st.data())
def test_headers_of_all_whole_batches_are_found(batches: list[bytearray], draw: st.DataObject) -> None:
    buffer = b"".join(batches)
    cut = draw.draw(st.integers(0, len(buffer)))
    ends, position = [], 0
    for batch in batches:
        position += len(batch)
        ends.append(position)
    found = list(iterate_headers(buffer[:cut]))
    assert [position + header.size_bytes for position, header in found] == [end for end in ends if end <= cut]
    for position, header in found:
        assert header == parse_header(buffer, position)


@given(BATCHES, st.data())
def test_any_changed_byte_under_the_crc_is_detected(batch: bytearray, draw: st.DataObject) -> None:
    position = draw.draw(st.integers(17, len(batch) - 1))
    batch[position] ^= draw.draw(st.integers(1, 255))
    assert not crc_matches(parse_header(batch), batch)


def test_invalid_batches_are_refused() -> None:
    with pytest.raises(CorruptBatchError, match="60 bytes"):
        parse_header(bytes(60))
    with pytest.raises(CorruptBatchError, match="batch length 0"):
        list(iterate_headers(bytes(61)))


def test_sequences_wrap_to_zero() -> None:
    records = [Record(i, 0, None, b"") for i in range(3)]
    batch = build_batch(records, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert parse_header(batch).last_sequence == 0
    assert parse_header(build_batch(records)).last_sequence == -1
