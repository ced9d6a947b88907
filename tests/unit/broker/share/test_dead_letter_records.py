"""Dead letters from batches, read again with the ordinary reader of records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.dead_letter_records import (
    NO_RECORD,
    DeadLetter,
    Origin,
    batches_of,
    letters_of_batch,
    letters_without_records,
)
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.kernel.instants import WallMs
from tidelog.model import dead_letters
from tidelog.records.batch import BATCH_HEADER_BYTES, crc_matches, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record, iterate_records

ORIGIN = Origin("sharers", "orders", 7)
NOW_MS = WallMs(1_700_000_000_000)
BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=4).map(tuple)


def headers_of(offset: int, count: int, reason: str) -> tuple[tuple[str, bytes], ...]:
    return (
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"7"),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.group", b"sharers"),
        ("__dlq.errors.delivery.count", str(count).encode()),
        ("__dlq.errors.message", reason.encode()),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Record], int]:
    """Draws the records of a batch, whose offsets may have gaps, and its compression."""
    offset, records = draw(st.integers(0, 1_000)), []
    for _ in range(draw(st.integers(1, 12))):
        records.append(Record(offset, draw(st.integers(0, 10**12)), draw(BYTES), draw(BYTES), draw(HEADERS)))
        offset += draw(st.integers(1, 3))
    return records, draw(st.sampled_from((Compression.NONE, Compression.GZIP, Compression.ZSTD)))


@given(batches(), st.data(), st.integers(1, 2_000))
def test_records_are_copied_with_the_headers(
    made: tuple[list[Record], int], data: st.DataObject, max_bytes: int
) -> None:
    records, compression = made
    batch = build_batch(records, base_offset=records[0].offset, compression=compression)
    first = data.draw(st.integers(0, records[-1].offset + 2))
    middle = data.draw(st.integers(first, records[-1].offset + 2))
    last = data.draw(st.integers(middle + 1, records[-1].offset + 4))
    wanted = [DeadLetters(first, middle, 1, True), DeadLetters(middle + 1, last, 5, False)]
    letters = list(letters_of_batch(batch, parse_header(batch), wanted, copies=True))
    found = list(batches_of(letters, ORIGIN, NOW_MS, max_bytes))
    copies = [record for made in found for record in iterate_records(made.batch)]
    expected = [record for record in records if first <= record.offset <= last]
    assert [offset for made in found for offset in made.offsets] == [record.offset for record in expected]
    assert [(copy.key, copy.value) for copy in copies] == [(record.key, record.value) for record in expected]
    for copy, record in zip(copies, expected, strict=True):
        is_rejected = record.offset <= middle
        reason = dead_letters.REJECTED if is_rejected else dead_letters.DELIVERED_TOO_OFTEN
        own = headers_of(record.offset, 1 if is_rejected else 5, reason)
        assert copy.headers == (*record.headers, *own)
        assert copy.timestamp == NOW_MS
    for made_batch in found:
        header = parse_header(made_batch.batch)
        assert crc_matches(header, made_batch.batch)
        assert len(made_batch.batch) <= max_bytes or len(made_batch.offsets) == 1
    whole = list(batches_of(letters, ORIGIN, NOW_MS, 10**9))
    assert len(whole) <= 1
    if whole and len(whole[0].batch) <= max_bytes:
        assert len(found) == 1


def test_without_copies_a_dead_letter_only_states_its_place() -> None:
    batch = build_batch([Record(5, 1, b"key", b"value", (("h", b"1"),))], base_offset=5)
    wanted = [DeadLetters(0, 9, 2, False)]
    letters = list(letters_of_batch(batch, parse_header(batch), wanted, copies=False))
    assert letters == [DeadLetter(5, 2, False, NO_RECORD)]
    (made,) = batches_of(letters, ORIGIN, NOW_MS, 10**6)
    (copy,) = iterate_records(made.batch)
    own = headers_of(5, 2, dead_letters.DELIVERED_TOO_OFTEN)
    assert (copy.key, copy.value, copy.headers) == (None, None, own)


def test_a_batch_that_cannot_be_decoded_has_dead_letters_without_content() -> None:
    batch = build_batch(
        [Record(at, 1, b"k", bytes(50)) for at in range(3)], base_offset=0, compression=Compression.GZIP
    )
    batch[70:80] = bytes(10)
    header = parse_header(batch)
    wanted = [DeadLetters(1, 8, 1, True)]
    with pytest.raises(ValueError):
        list(letters_of_batch(batch, header, wanted, copies=True))
    assert list(letters_without_records(header, wanted)) == [
        DeadLetter(1, 1, True, NO_RECORD),
        DeadLetter(2, 1, True, NO_RECORD),
    ]


def test_a_batch_is_walked_only_to_the_last_wanted_record() -> None:
    made = build_batch([Record(at, NOW_MS, None, b"v", ()) for at in range(5)])
    damaged = bytearray(made)
    damaged[-((len(made) - BATCH_HEADER_BYTES) // 5)] = 0x7F  # the length of the last record
    wanted = [DeadLetters(0, 0, 1, True), DeadLetters(2, 2, 2, False)]
    found = list(letters_of_batch(bytes(damaged), parse_header(made), wanted, copies=False))
    assert [(letter.offset, letter.delivery_count) for letter in found] == [(0, 1), (2, 2)]
