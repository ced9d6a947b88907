"""A follower accepts whole, valid batches in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.logs import make_batch
from tidelog.broker.partition.batch_validation import received_headers
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import iterate_headers


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Generates the batches of a leader's log, whose offsets may have gaps."""
    made, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))
        offset += draw(st.integers(0, 3))
        made.append(make_batch(offset, count, leader_epoch=draw(st.integers(0, 5))))
        offset += count
    return made


@given(batches(), st.data())
def test_whole_batches_are_found_and_an_incomplete_one_is_ignored(
    made: list[bytes], data: st.DataObject
) -> None:
    records = b"".join(made)
    kept = data.draw(st.integers(0, len(records)))
    first_offset = int.from_bytes(records[:8], "big")
    found = received_headers(memoryview(records)[:kept], first_offset)
    assert found == [header for _, header in iterate_headers(records[:kept])]


@given(batches(), st.data())
def test_a_flipped_bit_is_detected(made: list[bytes], data: st.DataObject) -> None:
    records = bytearray(b"".join(made))
    victim = data.draw(st.integers(0, len(made) - 1))
    start = sum(map(len, made[:victim]))
    # The CRC does not cover the bytes before this position.
    byte = data.draw(st.integers(start + 17, start + len(made[victim]) - 1))
    records[byte] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(KafkaError) as refusal:
        received_headers(memoryview(records), 0)
    assert refusal.value.code == ErrorCode.CORRUPT_MESSAGE


def test_batches_with_decreasing_offsets_are_refused() -> None:
    records = memoryview(make_batch(10, 5) + make_batch(14, 1))
    with pytest.raises(KafkaError) as refusal:
        received_headers(records, 10)
    assert refusal.value.code == ErrorCode.INVALID_RECORD
    with pytest.raises(KafkaError):
        received_headers(memoryview(make_batch(9, 5)), 10)


def test_other_bytes_are_not_a_batch() -> None:
    with pytest.raises(KafkaError):
        received_headers(memoryview(bytes(200)), 0)
    assert received_headers(memoryview(bytes(60)), 0) == []
