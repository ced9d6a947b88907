from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.batch_validation import (
    MAX_RECORD_ERRORS,
    MAX_WALK_RATIO,
    WALK_ON_LOOP_BYTES,
    AppendRules,
    LongWalkError,
    RecordValidationError,
    validate_batches,
    validate_records,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BATCH_HEADER_BYTES, BatchHeader, assemble_batch, crc_matches, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression, compress
from tidelog.records.record import Record, iterate_records
from tidelog.records.record_writer import append_record
from tidelog.records.varint import append_varint

NOW_MS = 1_700_000_000_000
CODECS = st.sampled_from(list(Compression))


def validate(
    batch: bytearray, rules: AppendRules, max_bytes: int | None = None
) -> tuple[memoryview, BatchHeader]:
    """Runs both checks, in the order in which a partition runs them."""
    records = memoryview(batch)
    header = validate_batches(records, rules=rules, now_ms=NOW_MS)
    assert rules.needs_records(header)
    return validate_records(records, header, rules=rules, now_ms=NOW_MS, most_bytes=max_bytes)


def code_of(batch: bytearray, rules: AppendRules, max_bytes: int | None = None) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate(batch, rules, max_bytes)
    return caught.value.code


def batch_with_body(body: bytes, count: int, codec: int = Compression.NONE) -> bytearray:
    header = parse_header(build_batch([Record(0, NOW_MS, b"k", b"v")]))
    attributes = header.attributes | codec
    return assemble_batch(
        header._replace(attributes=attributes, record_count=count, last_offset_delta=count - 1), body
    )


@given(st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=8), CODECS)
def test_a_compacted_topic_requires_keys(keys: list[bytes | None], codec: Compression) -> None:
    batch = build_batch([Record(i, NOW_MS, key, b"v") for i, key in enumerate(keys)], compression=codec)
    rules = AppendRules(is_compacted=True)
    without = [i for i, key in enumerate(keys) if key is None]
    if without:
        with pytest.raises(RecordValidationError) as caught:
            validate(batch, rules)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in caught.value.record_errors] == without
    else:
        stored, header = validate(batch, rules)
        assert (stored, header) == (batch, parse_header(batch))


@given(CODECS, CODECS, st.integers(1, 5), st.booleans())
def test_the_topics_codec_is_applied(
    codec: Compression, target: Compression, count: int, has_tail: bool
) -> None:
    records = [Record(i, NOW_MS + i, b"k", b"v" * 50, (("h", b"x"),)) for i in range(count)]
    batch = build_batch(records, compression=codec, producer_id=4, producer_epoch=2, base_sequence=8)
    rules = AppendRules(target_compression=target, validates_records=True)
    stored, header = validate(batch + bytes(3 * has_tail), rules)
    assert header.compression == target
    assert header == parse_header(stored)
    assert crc_matches(header, stored)
    assert not stored.readonly
    assert list(iterate_records(stored)) == records
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 8)
    if codec == target:
        assert stored == batch


def test_records_are_walked_only_if_necessary() -> None:
    header = parse_header(build_batch([Record(0, NOW_MS, None, None)], compression=Compression.LZ4))
    assert not AppendRules().needs_records(header)
    assert not AppendRules(target_compression=Compression.LZ4).needs_records(header)
    assert AppendRules(target_compression=Compression.ZSTD).needs_records(header)
    assert AppendRules(is_compacted=True).needs_records(header)
    assert AppendRules(validates_records=True).needs_records(header)


def test_a_wrong_greatest_timestamp_is_corrected() -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS - 50, b"k", b"v")])
    lying = assemble_batch(parse_header(batch)._replace(max_timestamp=NOW_MS + 5), bytes(batch[61:]))
    stored, header = validate(lying, AppendRules(validates_records=True))
    assert header.max_timestamp == NOW_MS
    assert stored == batch
    unchanged, _ = validate(lying, AppendRules(validates_records=True, is_log_append_time=True))
    assert unchanged == lying


def test_timestamps_that_the_header_hides_are_found() -> None:
    records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS - 5_000, None, b"v")]
    rules = AppendRules(is_compacted=True, timestamp_before_max_ms=1_000)
    with pytest.raises(RecordValidationError) as caught:
        validate(build_batch(records), rules)
    # A record has one error, and the missing key is found first.
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in caught.value.record_errors] == [1]
    mixed = [Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS - 5_000, b"k", b"v")]
    with pytest.raises(RecordValidationError) as caught:
        validate(build_batch(mixed), rules)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP  # one such record decides, as in Kafka
    assert [error.batch_index for error in caught.value.record_errors] == [0, 1]


def test_errors_are_bounded() -> None:
    records = [Record(i, NOW_MS, None, None) for i in range(MAX_RECORD_ERRORS + 10)]
    with pytest.raises(RecordValidationError) as caught:
        validate(build_batch(records), AppendRules(is_compacted=True))
    assert len(caught.value.record_errors) == MAX_RECORD_ERRORS


@pytest.mark.parametrize("codec", list(Compression))
def test_bytes_that_are_not_records_are_refused(codec: Compression) -> None:
    rules = AppendRules(validates_records=True)
    body = bytearray()
    append_record(body, timestamp_delta=0, offset_delta=0, key=b"k", value=b"v")
    whole = bytes(compress(codec, body))
    assert code_of(batch_with_body(whole, 2, codec), rules) == ErrorCode.INVALID_RECORD
    assert (
        code_of(batch_with_body(bytes(compress(codec, body + b"\x00")), 1, codec), rules)
        == ErrorCode.INVALID_RECORD
    )
    if codec is not Compression.NONE:
        assert code_of(batch_with_body(b"not compressed", 1, codec), rules) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2)])
def test_offsets_inside_a_batch_must_count_up(deltas: tuple[int, ...]) -> None:
    body = bytearray()
    for delta in deltas:
        append_record(body, timestamp_delta=0, offset_delta=delta, key=b"k", value=b"v")
    assert code_of(batch_with_body(body, 2), AppendRules(validates_records=True)) == ErrorCode.INVALID_RECORD


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    body = bytearray()
    append_record(body, timestamp_delta=2**63 - 1, offset_delta=0, key=b"k", value=b"v")
    rules = AppendRules(validates_records=True, is_log_append_time=True)
    assert code_of(batch_with_body(body, 1), rules) == ErrorCode.INVALID_RECORD


def test_a_batch_that_decompresses_to_too_many_bytes_is_refused() -> None:
    bomb = build_batch([Record(0, NOW_MS, b"k", bytes(1_000_000))], compression=Compression.ZSTD)
    rules = AppendRules(validates_records=True, max_message_bytes=10_000)
    assert len(bomb) < 10_000 < 1_000_000 // MAX_WALK_RATIO
    assert code_of(bomb, rules) == ErrorCode.MESSAGE_TOO_LARGE
    uncompressing = AppendRules(target_compression=Compression.NONE, max_message_bytes=100_000)
    assert code_of(bomb, uncompressing) == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_walk_over_more_than_the_limit_is_left_to_the_caller(codec: Compression) -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", bytes(100_000))], compression=codec)
    rules = AppendRules(validates_records=True)
    with pytest.raises(LongWalkError):
        validate(batch, rules, max_bytes=WALK_ON_LOOP_BYTES)
    validate(batch, rules, max_bytes=200_000)


def bomb_of_headers(timestamp_ms: int, count: int = 10_000_000) -> bytearray:
    """Returns a batch of 2 KB with one record that has `count` headers of two bytes each."""
    body = bytearray(b"\0\0\0\1\1")  # attributes, two deltas, no key, no value
    append_varint(body, count)
    body += b"\0\1" * count
    record = bytearray()
    append_varint(record, len(body))
    header = parse_header(build_batch([Record(0, timestamp_ms, None, None)], compression=Compression.ZSTD))
    return assemble_batch(header, compress(Compression.ZSTD, record + body))


def test_a_timestamp_out_of_range_is_refused_without_a_look_at_compressed_records() -> None:
    bomb = bomb_of_headers(NOW_MS + 10**10)
    began = time.thread_time()
    assert code_of_header(bomb, AppendRules()) == ErrorCode.INVALID_TIMESTAMP
    assert time.thread_time() - began < 0.01


@pytest.mark.parametrize("count", [3, 1_000_000])
def test_more_records_than_fit_are_refused_by_the_header(count: int) -> None:
    batch = build_batch([Record(0, NOW_MS, None, b"ab")])
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=count - 1)
    false = assemble_batch(header, memoryview(batch)[BATCH_HEADER_BYTES:])
    assert code_of_header(false, AppendRules()) == ErrorCode.INVALID_RECORD


@given(CODECS, CODECS)
def test_a_false_codec_is_refused_by_the_header(stated: Compression, used: Compression) -> None:
    """Snappy's raw blocks begin with any bytes, so a false snappy is not seen."""
    batch = build_batch([Record(n, NOW_MS, b"key", b"value" * 20) for n in range(5)], compression=used)
    header = parse_header(batch)
    false = assemble_batch(header._replace(attributes=stated.value), memoryview(batch)[BATCH_HEADER_BYTES:])
    if stated is used or stated in (Compression.NONE, Compression.SNAPPY):
        validate_batches(memoryview(false), rules=AppendRules(), now_ms=NOW_MS)
    else:
        assert code_of_header(false, AppendRules()) == ErrorCode.INVALID_RECORD


def test_headers_are_counted_and_not_built() -> None:
    bomb = bomb_of_headers(NOW_MS, 200_000)
    tracemalloc.start()
    try:
        validate(bomb, AppendRules(validates_records=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000  # 200,000 headers would take 20 MB


def code_of_header(batch: bytearray, rules: AppendRules) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate_batches(memoryview(batch), rules=rules, now_ms=NOW_MS)
    return caught.value.code


@given(st.binary(max_size=80), st.integers(1, 10), CODECS)
def test_random_bodies_are_refused_or_accepted(body: bytes, count: int, codec: Compression) -> None:
    try:
        validate(batch_with_body(body, count, codec), AppendRules(validates_records=True))
    except KafkaError as refusal:
        assert refusal.code in {
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.MESSAGE_TOO_LARGE,
        }


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("wrong", [-1, 0, NOW_MS - 51])
def test_a_greatest_timestamp_that_cannot_be_right_is_computed_from_the_records(
    codec: Compression, wrong: int
) -> None:
    """Sarama up to 1.45 sends -1. The broker stored that, and then deleted the records as old ones."""
    records = [Record(0, NOW_MS - 50, b"k", b"v"), Record(1, NOW_MS, None, b"v")]
    batch = build_batch(records, compression=codec)
    sent = assemble_batch(parse_header(batch)._replace(max_timestamp=wrong), bytes(batch[61:]))
    stored, header = validate(sent, AppendRules(timestamp_before_max_ms=1_000))
    assert header.max_timestamp == NOW_MS
    assert stored == batch
    assert crc_matches(header, stored)
    assert not AppendRules(is_log_append_time=True).needs_records(parse_header(sent))


def test_records_without_times_stay_without() -> None:
    batch = build_batch([Record(0, -1, b"k", b"v"), Record(1, -1, b"k", b"v")])
    assert validate(batch, AppendRules(timestamp_before_max_ms=1_000))[0] == batch


def test_a_header_without_times_hides_no_time_out_of_range() -> None:
    batch = build_batch([Record(0, NOW_MS - 5_000, b"k", b"v")])
    sent = assemble_batch(parse_header(batch)._replace(max_timestamp=-1), bytes(batch[61:]))
    assert code_of(sent, AppendRules(timestamp_before_max_ms=1_000)) == ErrorCode.INVALID_TIMESTAMP
