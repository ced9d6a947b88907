"""`BatchReader` agrees with `iterate_records`."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.consuming.consumed_partition import FetchedBatches
from tidelog.client.core.consuming.records import BatchReader, ConsumerRecord
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record, iterate_records

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


def read(batch: bytes | bytearray, most: int) -> tuple[list[Record], bool]:
    """Returns the records that a reader finds, and whether they end with an error."""
    found: list[Record] = []
    try:
        reader = BatchReader(PLACE, memoryview(batch), 0, parse_header(batch))
        while records := reader.read(most):
            assert len(records) <= most
            found += [
                Record(record.offset, record.timestamp, record.key, record.value, record.headers)
                for record in records
            ]
    except ValueError:
        return found, True
    return found, False


def iterate(batch: bytes | bytearray) -> tuple[list[Record], bool]:
    found: list[Record] = []
    try:
        found.extend(iterate_records(batch))
    except ValueError:
        return found, True
    return found, False


PIECES = st.integers(1, 10)


@given(batches(), PIECES)
def test_it_reads_what_iterate_records_reads(batch: bytearray, most: int) -> None:
    assert read(batch, most) == (list(iterate_records(batch)), False)


@given(batches(), PIECES, st.data())
def test_it_accepts_no_damage_that_iterate_records_refuses(
    batch: bytearray, most: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(61, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    found, is_refused = read(batch, most)
    expected, is_damaged = iterate(batch)
    assert is_refused == is_damaged
    assert found == expected[: len(found)]
    assert is_refused or len(found) == len(expected)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_cut_batch_is_refused(most: int) -> None:
    batch = build_batch([Record(number, 1, None, b"value") for number in range(2)])
    for length in range(61, len(batch)):
        assert read(batch[:length], most)[1]


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_a_wrong_number_of_records_is_refused(count: int) -> None:
    batch = build_batch([Record(number, 1, None, b"value") for number in range(2)])
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    assert read(batch, 10)[1] and iterate(batch)[1]


def test_records_of_a_large_batch_exist_only_while_they_are_needed() -> None:
    """More than 700 new objects start Python's garbage collector, which cost a third of the time."""
    batch = build_batch([Record(number, 1, None, b"v") for number in range(3_000)])
    fetched = FetchedBatches(TopicPartition("only-here", 0), memoryview(batch), 0, [])
    taken = 0
    while records := fetched.take(500):
        taken += len(records)
        existing = [each for each in gc.get_objects() if type(each) is ConsumerRecord]
        assert sum(each.topic == "only-here" for each in existing) == len(records) == 500
        del records, existing
    assert taken == 3_000
