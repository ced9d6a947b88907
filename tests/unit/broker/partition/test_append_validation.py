"""Checks of clients' batches. Apache Kafka 4.3.1 was tried with each of them; comments name deviations."""

from __future__ import annotations

import struct
import time

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.batch_validation import AppendRules, RecordValidationError, validate_batches
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BatchHeader, assemble_batch, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.compression import Compression
from tidelog.records.record import Record

NOW_MS = 1_700_000_000_000
RULES = AppendRules()


def batch_of(*timestamps_ms: int, compression: int = 0) -> bytearray:
    records = [Record(i, timestamp, b"k", b"v" * 10) for i, timestamp in enumerate(timestamps_ms)]
    return build_batch(records, base_offset=0, compression=compression)


GOOD = batch_of(NOW_MS, NOW_MS + 1, NOW_MS + 2)


def with_fields(batch: bytearray, **fields: int) -> bytearray:
    """Returns the batch with other header fields and a valid CRC."""
    return assemble_batch(parse_header(batch)._replace(**fields), bytes(batch[61:]))


def with_bytes(batch: bytes | bytearray, position: int, layout: str, value: int) -> bytearray:
    """Returns the batch with other bytes. Its CRC is then wrong if it covers them."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    return changed


def validate(batch: bytes | bytearray, rules: AppendRules = RULES, produce_version: int = 9) -> BatchHeader:
    return validate_batches(memoryview(batch), rules=rules, now_ms=NOW_MS, produce_version=produce_version)


def code_of(batch: bytes | bytearray, rules: AppendRules = RULES, produce_version: int = 9) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate(batch, rules, produce_version)
    assert caught.value.message
    return caught.value.code


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(10), ErrorCode.INVALID_RECORD),
        (bytes(20), ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-3], ErrorCode.INVALID_RECORD),
        (GOOD[:40], ErrorCode.INVALID_RECORD),
        (GOOD[:14], ErrorCode.INVALID_RECORD),
        (with_bytes(GOOD, 16, ">b", 0), ErrorCode.INVALID_RECORD),
        (with_bytes(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD),
        (with_bytes(GOOD, 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, 16, ">b", -1), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD[:32], 8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),  # Kafka: UNKNOWN_SERVER_ERROR
        (with_bytes(with_bytes(GOOD[:32], 8, ">i", 20), 16, ">b", 1), ErrorCode.INVALID_RECORD),
        (with_bytes(GOOD, 8, ">i", 13), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, 8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, 8, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
        (with_bytes(GOOD[:60], 8, ">i", 48), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD[:61], 8, ">i", 49), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, 17, ">I", 1), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, len(GOOD) - 1, ">b", 1), ErrorCode.CORRUPT_MESSAGE),
        (with_bytes(GOOD, 0, ">q", 5), ErrorCode.INVALID_RECORD),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD + bytes(12), ErrorCode.CORRUPT_MESSAGE),
        (GOOD + with_bytes(GOOD, 16, ">b", 9), ErrorCode.CORRUPT_MESSAGE),
        (with_fields(GOOD, record_count=2), ErrorCode.INVALID_RECORD),
        (with_fields(GOOD, record_count=-1), ErrorCode.INVALID_RECORD),
        (with_fields(GOOD, last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (with_fields(GOOD, last_offset_delta=-1, record_count=0), ErrorCode.INVALID_RECORD),
        (with_fields(GOOD, last_offset_delta=-2, record_count=-1), ErrorCode.INVALID_RECORD),
        (with_fields(GOOD, attributes=0x20), ErrorCode.INVALID_RECORD),
        (
            with_fields(GOOD, attributes=5),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ),  # Kafka: -1
        (with_fields(GOOD, producer_id=7, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        # Kafka accepts the batch and clears the attribute.
        (with_fields(GOOD, attributes=8), ErrorCode.INVALID_TIMESTAMP),
        (with_fields(GOOD, attributes=8, max_timestamp=-1), ErrorCode.INVALID_TIMESTAMP),
        (with_fields(GOOD, max_timestamp=NOW_MS + 10**10), ErrorCode.INVALID_TIMESTAMP),  # Kafka corrects it
    ],
)
def test_refusals(batch: bytearray, code: ErrorCode) -> None:
    assert code_of(batch) == code


@pytest.mark.parametrize(
    "batch",
    [
        GOOD,
        GOOD + bytes(5),
        GOOD + GOOD[:40],
        with_fields(GOOD, attributes=0x40),
        with_fields(GOOD, attributes=0x7F80),
        with_fields(GOOD, producer_id=7, producer_epoch=-1, base_sequence=0),
        with_fields(GOOD, producer_id=-5, producer_epoch=0, base_sequence=-1),
        with_fields(GOOD, base_sequence=7),
        batch_of(-1),
        batch_of(NOW_MS + 3_600_000),
        batch_of(0),
        *(batch_of(NOW_MS, compression=codec) for codec in Compression),
    ],
)
def test_accepted_batches(batch: bytearray) -> None:
    header = validate(batch)
    assert type(header) is BatchHeader
    assert header == parse_header(batch)


@pytest.mark.parametrize("version", [3, 6, 7, 13])
def test_zstd_needs_produce_version_7(version: int) -> None:
    batch = batch_of(NOW_MS, compression=Compression.ZSTD)
    if version < 7:
        assert code_of(batch, produce_version=version) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    else:
        assert validate(batch, produce_version=version).compression == Compression.ZSTD


@given(st.integers(0, 2 * len(GOOD)))
def test_sizes(limit: int) -> None:
    assert_size(AppendRules(max_message_bytes=limit), limit, ErrorCode.MESSAGE_TOO_LARGE)
    assert_size(AppendRules(segment_bytes=limit), limit, ErrorCode.RECORD_LIST_TOO_LARGE)


def assert_size(rules: AppendRules, limit: int, code: ErrorCode) -> None:
    if len(GOOD) > limit:
        assert code_of(GOOD, rules) == code
    else:
        validate(GOOD, rules)


def test_the_size_is_checked_before_the_crc_and_the_crc_before_the_rest() -> None:
    wrong = with_bytes(with_fields(GOOD, attributes=0x20, record_count=9), 17, ">I", 1)
    assert code_of(wrong, AppendRules(max_message_bytes=50)) == ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(wrong) == ErrorCode.CORRUPT_MESSAGE
    assert (
        code_of(with_bytes(wrong, 0, ">q", 1), AppendRules(max_message_bytes=50)) == ErrorCode.INVALID_RECORD
    )


@given(
    st.lists(st.integers(-2_000, 2_000), min_size=1, max_size=6), st.integers(0, 1_500), st.integers(0, 1_500)
)
def test_timestamps_must_be_in_the_topics_range(
    differences: list[int], before_ms: int, after_ms: int
) -> None:
    """The check uses the first and the greatest timestamp. It does not see a later, too old one."""
    batch = batch_of(*(NOW_MS + difference for difference in differences))
    rules = AppendRules(timestamp_before_max_ms=before_ms, timestamp_after_max_ms=after_ms)
    wrong = [i for i, difference in enumerate(differences) if not -before_ms <= difference <= after_ms]
    if not all(-before_ms <= difference <= after_ms for difference in (differences[0], max(differences))):
        with pytest.raises(RecordValidationError) as caught:
            validate(batch, rules)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        assert [error.batch_index for error in caught.value.record_errors] == wrong
    else:
        validate(batch, rules)


def test_log_append_time_accepts_any_timestamp_but_not_the_attribute() -> None:
    rules = AppendRules(is_log_append_time=True, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    validate(batch_of(5, 2**50), rules)
    assert code_of(with_fields(GOOD, attributes=8), rules) == ErrorCode.INVALID_TIMESTAMP


@given(st.data())
def test_damage_anywhere_is_refused_unless_outside_the_crc(draw: st.DataObject) -> None:
    position = draw.draw(st.integers(0, len(GOOD) - 1))
    damaged = bytearray(GOOD)
    damaged[position] ^= draw.draw(st.integers(1, 255))
    if 12 <= position < 16:  # the leader epoch, which the broker sets anyway
        validate(damaged)
    else:
        assert code_of(damaged) in {
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.MESSAGE_TOO_LARGE,
        }


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert code_of(data) in {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "base_offset": st.sampled_from([0, 1, -1]),
            "attributes": st.integers(-(2**15), 2**15 - 1),
            "last_offset_delta": st.integers(-2, 4),
            "record_count": st.integers(-2, 4),
            "base_timestamp": st.sampled_from([-1, 0, NOW_MS, NOW_MS + 10**9, 2**63 - 1, -(2**63)]),
            "max_timestamp": st.sampled_from([-1, 0, NOW_MS, NOW_MS + 10**9, 2**63 - 1, -(2**63)]),
            "producer_id": st.integers(-2, 2),
            "base_sequence": st.integers(-2, 2),
        },
    ),
    st.booleans(),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0, 1_000, 2**63 - 1]),
)
def test_the_quick_check_and_the_ordered_checks_agree(
    fields: dict[str, int], is_log_append_time: bool, size_difference: int, before_ms: int
) -> None:
    """An incomplete second batch forces the ordered checks. Without it, the quick check may accept."""
    batch = with_fields(GOOD, **fields)
    rules = AppendRules(
        is_log_append_time=is_log_append_time,
        max_message_bytes=len(batch) + size_difference,
        timestamp_before_max_ms=before_ms,
        timestamp_after_max_ms=1_000,
    )
    try:
        expected: BatchHeader | ErrorCode = validate(batch + b"\x00", rules)
    except KafkaError as refusal:
        expected = refusal.code
    if isinstance(expected, BatchHeader):
        assert validate(batch, rules) == expected == parse_header(batch)
    else:
        assert code_of(batch, rules) == expected


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_without_the_records_that_it_states_is_refused(compression: Compression) -> None:
    empty = assemble_batch(parse_header(GOOD)._replace(attributes=int(compression)))
    assert code_of(empty) is ErrorCode.INVALID_RECORD


def lz4_body(*parts: bytes, **options: bool) -> bytes:
    """Returns a frame for each part."""
    frames = b""
    for part in parts:
        frame = cramjam.lz4.Compressor(**{"block_linked": False, "content_checksum": False} | options)
        frame.compress(part)
        frames += bytes(frame.finish())
    return frames


def with_body(codec: Compression, body: bytes) -> bytearray:
    return assemble_batch(parse_header(GOOD)._replace(attributes=codec), body)


RECORDS = bytes(GOOD[61:])
SKIPPABLE = struct.pack("<II", 0x184D2A53, 4) + b"skip"


def test_lz4_that_java_clients_cannot_read_is_refused_as_by_kafka() -> None:
    for body in (
        lz4_body(RECORDS, block_linked=True),
        lz4_body(RECORDS[:20], RECORDS[20:]),
        lz4_body(RECORDS)[:-1],
        SKIPPABLE + lz4_body(RECORDS),
    ):
        assert code_of(with_body(Compression.LZ4, body)) is ErrorCode.INVALID_RECORD
    for body in (lz4_body(RECORDS), lz4_body(RECORDS, content_checksum=True), lz4_body(RECORDS) + bytes(9)):
        validate(with_body(Compression.LZ4, body))


def test_an_lz4_frame_of_very_many_blocks_takes_no_long_look() -> None:
    body = b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<IB", 1, 0) * 200_000
    began = time.thread_time()
    validate(with_body(Compression.LZ4, body), AppendRules(max_message_bytes=2_000_000))
    assert time.thread_time() - began < 0.1


def test_zstd_may_begin_with_a_skippable_frame() -> None:
    validate(with_body(Compression.ZSTD, SKIPPABLE + bytes(cramjam.zstd.compress(RECORDS))))
    assert code_of(with_body(Compression.ZSTD, b"\x50\x2a\x4d\x19" + bytes(20))) is ErrorCode.INVALID_RECORD


def test_a_transactional_batch_needs_a_producer_id() -> None:
    batch = with_fields(GOOD, attributes=0x10)
    assert code_of(batch) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    validate(with_fields(GOOD, attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0))
