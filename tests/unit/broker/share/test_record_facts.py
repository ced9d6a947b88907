"""Records say when to deliver them, and damaged or strange ones say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.batch_validation import AppendRules, validate_batches
from tidelog.broker.share import screening
from tidelog.broker.share.screening import FoundFacts, RecordFacts, WantedFacts, find_facts
from tidelog.kernel.instants import WallMs
from tidelog.records.batch import EndTransactionMarker, assemble_batch, parse_header
from tidelog.records.builder import Record, build_batch, build_end_transaction_batch
from tidelog.records.compression import Compression
from tidelog.records.varint import append_varint

NOW = 1_700_000_000_000
DAY_MS = 86_400_000
TIMES = WantedFacts(DAY_MS, keys=False)


def batch(base_offset: int, *values: bytes | None, **options: object) -> bytes:
    """Returns a batch of records with these values of the header; None stands for no header."""
    records = []
    for number, value in enumerate(values):
        headers = [] if value is None else [("other", b"1"), (screening.DELIVER_AT, value)]
        records.append(Record(number, NOW, None, b"v", headers))
    made = bytearray(build_batch(records, **options))  # type: ignore[arg-type]
    made[:8] = base_offset.to_bytes(8, "big")
    return bytes(made)


def time_after(delay_ms: int) -> bytes:
    return b"%d" % (NOW + delay_ms)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_times_are_found_and_adjacent_records_without_one_are_one_entry(codec: Compression) -> None:
    batches = batch(5, None, None, time_after(10), compression=codec) + batch(8, None, time_after(10))
    assert find_facts(batches, 6, TIMES) == (
        [
            RecordFacts(6, 6),
            RecordFacts(7, 7, NOW + 10),
            RecordFacts(8, 8),
            RecordFacts(9, 9, NOW + 10),
        ],
        10,
    )


@pytest.mark.parametrize(
    "value",
    [b"", b"soon", b"-5", b"+5", b" 17", b"1.5", "\u0661".encode(), b"9" * 20, time_after(DAY_MS + 1)],
)
def test_a_value_that_is_no_time_or_too_distant_does_not_count(value: bytes) -> None:
    assert find_facts(batch(0, value), 0, TIMES).records == [RecordFacts(0, 0)]


def test_the_longest_delay_counts_from_the_timestamp() -> None:
    assert find_facts(batch(0, time_after(DAY_MS)), 0, TIMES).records == [RecordFacts(0, 0, NOW + DAY_MS)]


def test_each_record_with_a_key_is_an_entry() -> None:
    keys = [b"a", None, None, b"a", b"", b"b"]
    records = [Record(number, NOW, key, b"v", []) for number, key in enumerate(keys)]
    found = find_facts(build_batch(records), 0, WantedFacts(None, keys=True))
    a, empty, b = hash(b"a"), hash(b""), hash(b"b")
    assert [tuple(facts) for facts in found.records] == [
        (0, 0, 0, a),
        (1, 2, 0, None),
        (3, 3, 0, a),
        (4, 4, 0, empty),
        (5, 5, 0, b),
    ]


def test_a_control_batch_has_no_records() -> None:
    marker = build_end_transaction_batch(
        EndTransactionMarker(is_commit=True, coordinator_epoch=0),
        base_offset=2,
        timestamp_ms=NOW,
        producer_id=1,
        producer_epoch=0,
    )
    found = find_facts(batch(0, None, None) + bytes(marker), 0, TIMES)
    assert found == ([RecordFacts(0, 1)], 3)


def test_damaged_records_have_no_facts() -> None:
    damaged = bytearray(batch(0, time_after(10), time_after(20)))
    damaged[61] = 0x7F
    found = find_facts(bytes(damaged) + batch(2, time_after(30)), 0, TIMES)
    assert found == ([RecordFacts(0, 1), RecordFacts(2, 2, NOW + 30)], 3)


@given(st.integers(1, 7))
def test_a_look_ends_within_a_batch_and_goes_on_there(most: int) -> None:
    batches = batch(0, *(time_after(number) for number in range(5))) + batch(5, *([None] * 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening, "MAX_FOUND_RECORDS", most)
        offset, seen = 0, dict[int, int]()
        while offset < 11:
            found = find_facts(batches, offset, TIMES)
            assert found.next_offset > offset
            assert sum(facts.last - facts.first + 1 for facts in found.records) <= most
            for facts in found.records:
                seen |= dict.fromkeys(range(facts.first, facts.last + 1), facts.deliver_at_ms)
            offset = found.next_offset
    assert seen == {number: NOW + number if number < 5 else 0 for number in range(11)}


def with_offset_deltas(*deltas: int) -> bytes:
    """Returns a batch whose producer wrote these offset deltas. The broker's checks accept it."""
    plain = build_batch([Record(number, NOW, None, b"v", []) for number in range(len(deltas))])
    body = bytearray()
    for delta in deltas:
        record = bytearray(2)  # attributes and timestamp delta
        append_varint(record, delta)
        for field in (b"k%d" % delta, b"v"):
            append_varint(record, len(field))
            record += field
        append_varint(record, 0)
        append_varint(body, len(record))
        body += record
    made = bytes(assemble_batch(parse_header(plain), body))
    validate_batches(memoryview(made), rules=AppendRules(), now_ms=WallMs(NOW))
    return made


@pytest.mark.parametrize("deltas", [(0, 10**9), (0, 2), (0, 0), (1, 0), (-1, 1)])
def test_offsets_that_are_not_in_their_batch_or_not_in_order_give_no_facts(deltas: tuple[int, int]) -> None:
    """Otherwise a producer could archive the records of others."""
    found = find_facts(with_offset_deltas(*deltas) + batch(2, None), 0, WantedFacts(None, keys=True))
    assert found == ([RecordFacts(0, 2)], 3)
    assert len(find_facts(with_offset_deltas(0, 1), 0, WantedFacts(None, keys=True)).records) == 2


def test_facts_are_taken_in_parts() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening, "MAX_RECORDS", 2)
        found = FoundFacts([RecordFacts(at, at, key=at) for at in (0, 3, 4)], 9)
        first, rest = found.split()
        assert first == ([RecordFacts(0, 0, key=0), RecordFacts(3, 3, key=3)], 4)
        assert rest == ([RecordFacts(4, 4, key=4)], 9)
        assert rest.split() == (rest, ([], 9))
