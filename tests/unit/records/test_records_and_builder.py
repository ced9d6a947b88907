"""aiokafka and kafka-python read the batches that we build, and we read theirs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from tidelog.records.batch import (
    ControlType,
    CorruptControlRecordError,
    EndTransactionMarker,
    crc_matches,
    decode_end_transaction,
    parse_header,
)
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.compression import Compression
from tidelog.records.record import (
    CorruptRecordError,
    Record,
    end_transaction_marker,
    iterate_records,
    records_of,
    scan_records,
)
from tidelog.records.record_writer import (
    MAX_RECORD_OVERHEAD_BYTES,
    NO_HEADERS,
    RecordPieces,
    append_encoded,
    append_record,
    counted_headers,
    headers_size_bound,
)

CODECS = st.sampled_from(list(Compression))
NULLABLE = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=3).map(tuple)
TIMESTAMPS = st.integers(0, 2**60)
MAX_COUNT_BYTES = 10  # the varints of the record's length and of the number of headers


@st.composite
def record_lists(draw: st.DrawFn, has_holes: bool = True) -> list[Record]:
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 8))):
        records.append(Record(offset, draw(TIMESTAMPS), draw(NULLABLE), draw(NULLABLE), draw(HEADERS)))
        offset += draw(st.integers(1, 1_000)) if has_holes else 1
    return records


@given(record_lists(), CODECS)
def test_round_trip(records: list[Record], codec: Compression) -> None:
    batch = build_batch(records, compression=codec, leader_epoch=7)
    header = parse_header(batch)
    assert crc_matches(header, batch)
    assert header.size_bytes == len(batch)
    assert header.record_count == len(records)
    assert header.last_offset == records[-1].offset
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.compression == codec
    assert header.partition_leader_epoch == 7
    assert list(iterate_records(batch)) == records


@given(record_lists(), TIMESTAMPS)
def test_log_append_time_is_the_timestamp_of_all_records(records: list[Record], now_ms: int) -> None:
    batch = build_batch(records, log_append_time_ms=now_ms)
    assert list(iterate_records(batch)) == [record._replace(timestamp=now_ms) for record in records]


@given(record_lists(has_holes=False), CODECS)
def test_other_clients_read_what_we_build(records: list[Record], codec: Compression) -> None:
    batch = bytes(build_batch(records, compression=codec, producer_id=5, producer_epoch=1, base_sequence=9))
    readers = [AiokafkaBatch(batch)]
    # kafka-python has no other codec without extra packages
    if codec in (Compression.NONE, Compression.GZIP):
        readers.append(KafkaPythonBatch(batch))
    for reader in readers:
        assert reader.validate_crc()
        read = [Record(r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in reader]
        assert read == records
        assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (5, 1, 9)


@given(record_lists(has_holes=False), CODECS)
def test_we_read_what_other_clients_build(records: list[Record], codec: Compression) -> None:
    builder = AiokafkaBuilder(2, codec, 0, -1, -1, -1, 1_000_000)
    base_offset = records[0].offset
    for record in records:
        builder.append(
            record.offset - base_offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytes(builder.build())
    assert crc_matches(parse_header(batch), batch)
    assert [
        record._replace(offset=record.offset + base_offset) for record in iterate_records(batch)
    ] == records


@given(record_lists(), st.data())
def test_damaged_records_are_either_refused_or_read(records: list[Record], draw: st.DataObject) -> None:
    """The reader does not check the CRC, so it cannot detect damage in keys and values. It must not fail
    otherwise.
    """
    batch = build_batch(records)
    position = draw.draw(st.integers(61, len(batch) - 1))
    batch[position] ^= draw.draw(st.integers(1, 255))
    with suppress(CorruptRecordError):
        assert len(list(iterate_records(batch))) == len(records)


@given(record_lists(), st.data())
def test_cut_records_are_refused(records: list[Record], draw: st.DataObject) -> None:
    body = records_of(batch := build_batch(records), parse_header(batch))
    cut = draw.draw(st.integers(0, len(body) - 1))
    with pytest.raises(CorruptRecordError):
        list(scan_records(body[:cut], len(records)))


@given(record_lists(), st.sampled_from([-1, 1]))
def test_a_wrong_count_is_refused(records: list[Record], difference: int) -> None:
    body = records_of(batch := build_batch(records), parse_header(batch))
    with pytest.raises(CorruptRecordError):
        list(scan_records(body, len(records) + difference))


@given(st.binary(max_size=100), st.integers(0, 2**31 - 1))
def test_random_bytes_are_refused_or_counted(body: bytes, count: int) -> None:
    with suppress(CorruptRecordError):
        assert len(list(scan_records(body, count))) == count


def test_a_batch_needs_records_with_rising_offsets() -> None:
    with pytest.raises(ValueError, match="needs at least one record"):
        build_batch([])
    same = [Record(4, 0, None, None), Record(4, 0, None, None)]
    with pytest.raises(ValueError, match="does not rise"):
        build_batch(same)
    with pytest.raises(ValueError, match="does not rise"):
        build_batch(same[:1], base_offset=5)


def test_a_header_without_a_key_is_refused() -> None:
    body = bytearray()
    append_record(body, timestamp_delta=0, offset_delta=0, key=None, value=None, headers=(("", None),))
    body[-2] = 1  # the key length -1 as a zigzag number
    batch = build_batch([Record(0, 0, None, None, (("", None),))])
    batch[61:] = body
    with pytest.raises(CorruptRecordError, match="no key"):
        list(iterate_records(batch))


@given(st.booleans(), st.integers(-1, 2**31 - 1), st.integers(0, 2**40))
def test_end_transaction_markers(is_commit: bool, coordinator_epoch: int, offset: int) -> None:
    marker = EndTransactionMarker(is_commit, coordinator_epoch)
    batch = build_end_transaction_batch(
        marker, base_offset=offset, timestamp_ms=1_000, producer_id=3, producer_epoch=2, leader_epoch=1
    )
    header = parse_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 2, -1)
    assert end_transaction_marker(batch) == marker


def test_other_control_records_are_not_markers() -> None:
    key = b"\x00\x00\x00" + bytes([ControlType.LEADER_CHANGE])
    assert decode_end_transaction(key, b"") is None
    for broken in ((b"\x00\x00\x00", b"\x00" * 6), (b"\x00\x00\x00\x01", b"\x00" * 5)):
        with pytest.raises(CorruptControlRecordError):
            decode_end_transaction(*broken)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=9), st.integers(0, 9)
)
def test_headers_above_the_limit_are_counted(headers: list[tuple[str, bytes | None]], limit: int) -> None:
    batch = build_batch([Record(0, 1, b"k", b"v", tuple(headers)), Record(1, 1, b"k", b"w")])
    first, second = iterate_records(batch, max_headers=limit)
    assert first == Record(0, 1, b"k", b"v", tuple(headers[:limit]), max(0, len(headers) - limit))
    assert second == Record(1, 1, b"k", b"w")


@given(HEADERS)
def test_the_size_of_headers_is_bounded(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    with_headers, without = bytearray(), bytearray()
    append_record(with_headers, timestamp_delta=0, offset_delta=0, key=None, value=None, headers=headers)
    append_record(without, timestamp_delta=0, offset_delta=0, key=None, value=None)
    assert len(with_headers) - len(without) <= headers_size_bound(headers) + MAX_COUNT_BYTES


parts_of_records = st.tuples(
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=8) | st.integers(500, 530).map(bytes) | st.just(bytes(5_000)),
    st.sampled_from([NO_HEADERS, counted_headers((("name", b"content"),))]),
)


@given(st.lists(parts_of_records, max_size=8))
def test_pieces_are_the_records_that_append_writes(
    records: list[tuple[bytes | None, bytes | None, bytes]],
) -> None:
    pieces, whole = RecordPieces(), bytearray()
    for offset, (key, value, headers) in enumerate(records):
        pieces.append(5, offset, key, value, headers)
        append_encoded(whole, 5, offset, key, value, headers)
        assert pieces.size_bytes == len(whole)
    assert b"".join(pieces.pieces()) == whole


@given(st.lists(st.none() | st.integers(0, 900).map(bytes), max_size=8), st.integers(0, 3_000))
def test_values_are_appended_up_to_the_limit(values: list[bytes | None], max_bytes: int) -> None:
    pieces, single = RecordPieces(), RecordPieces()
    count = pieces.append_values(0, 0, values, 0, max_bytes)
    for offset, value in enumerate(values[:count]):
        single.append(0, offset, None, value, NO_HEADERS)
    assert b"".join(pieces.pieces()) == b"".join(single.pieces())
    assert pieces.size_bytes <= max_bytes or count == 0
    if count < len(values):
        size = len(values[count] or b"") + MAX_RECORD_OVERHEAD_BYTES
        assert pieces.size_bytes + size > max_bytes


@pytest.mark.parametrize(
    "key, value", [("text", bytes(600)), ("text", b""), (None, "x" * 600), (None, 5), (b"", [1])]
)
def test_a_record_that_is_not_bytes_changes_nothing(key: Any, value: Any) -> None:
    pieces = RecordPieces()
    pieces.append(0, 0, b"key", b"value", NO_HEADERS)
    before = b"".join(pieces.pieces())
    with pytest.raises(TypeError):
        pieces.append(0, 1, key, value, NO_HEADERS)
    assert b"".join(pieces.pieces()) == before
    assert pieces.size_bytes == len(before)
