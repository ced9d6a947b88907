"""The fast walk accepts the records that the record-by-record walk accepts, and nothing else."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import CorruptRecordError, Record, check_headers, records_of, scan_records
from tidelog.records.record_walk import Walked, find_ends, read_head, walk
from tidelog.records.varint import read_varint

HEADERS = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        HEADERS,
    ),
    min_size=1,
    max_size=8,
)


def body_of(records: list[Record]) -> bytes:
    numbered = [record._replace(offset=number) for number, record in enumerate(records)]
    batch = bytes(build_batch(numbered))
    return bytes(records_of(batch, parse_header(batch)))


def slow_walk(body: bytes, count: int) -> Walked | None:
    deltas, keyless = [], 0
    try:
        for number, span in enumerate(scan_records(memoryview(body), count)):
            if span.offset_delta != number:
                return None
            check_headers(memoryview(body), span.headers_start, span.end)
            deltas.append(span.timestamp_delta)
            keyless += span.key_length < 0
    except CorruptRecordError:
        return None
    return Walked(min(deltas), max(deltas), keyless) if deltas else None


@given(RECORDS)
def test_sound_records_are_accepted(records: list[Record]) -> None:
    body = body_of(records)
    found = walk(body, len(records))
    assert found is not None
    assert found == slow_walk(body, len(records))


@given(RECORDS)
def test_heads_are_those_of_the_record_by_record_walk(records: list[Record]) -> None:
    body, position = body_of(records), 0
    for span in scan_records(memoryview(body), len(records)):
        end, timestamp_delta, rest, offset_delta, key_start, key_length = read_head(body, position)
        assert (end, timestamp_delta, offset_delta) == (span.end, span.timestamp_delta, span.offset_delta)
        assert (key_start, key_length) == (span.key_start, span.key_length)
        assert read_varint(body, rest)[0] == offset_delta
        position = end


@given(RECORDS, st.data())
def test_damaged_records_are_accepted_only_if_the_slow_walk_accepts_them(
    records: list[Record], data: st.DataObject
) -> None:
    body = bytearray(body_of(records))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    count = len(records) + data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    found = walk(bytes(body), count)
    assert found is None or found == slow_walk(bytes(body), count)


@given(st.binary(max_size=40), st.integers(0, 4))
@example(b"\x0c\0\0\0\x01\x01\0", 1)
@example(b"\x10\0\0\0\x01\x01\x02\x01\x01", 1)  # a header without a key
@example(b"\xff" * 40, 1)
def test_random_bytes_are_accepted_only_if_the_slow_walk_accepts_them(body: bytes, count: int) -> None:
    found = walk(body, count)
    assert found is None or found == slow_walk(body, count)


@given(RECORDS, st.binary(max_size=10))
def test_ends_are_those_of_the_slow_walk(records: list[Record], behind: bytes) -> None:
    body = body_of(records)
    spans = scan_records(memoryview(body), len(records))
    assert find_ends(body + behind, len(records)) == [span.end for span in spans]


@given(RECORDS)
def test_cut_records_have_no_ends(records: list[Record]) -> None:
    body = body_of(records)
    assert find_ends(body[:-1], len(records)) is None
    assert find_ends(body, len(records) + 1) is None
    assert find_ends(b"\x01" + body, 1) is None, "a negative length"


def test_a_timestamp_delta_of_64_bits_is_read() -> None:
    """Kafka accepts a varint of ten bytes. The walk of the produce path leaves it to a slower one."""
    for encoded, delta in ((b"\x80" * 9 + b"\x00", 0), (b"\xff" * 9 + b"\x01", -(2**63))):
        rest = b"\x00\x01\x01\x00"  # the offset delta, no key, no value, no headers
        body = bytes([2 * (1 + len(encoded) + len(rest))]) + b"\x00" + encoded + rest
        end, timestamp_delta, _, offset_delta, _, key_length = read_head(body, 0)
        assert (end, timestamp_delta, offset_delta, key_length) == (len(body), delta, 0, -1)
