"""The headers of a quarantined record."""

from __future__ import annotations

from tidelog.pipeline.quarantine.replay import (
    REPLAY_ORIGIN,
    Origin,
    batches_of,
    note_of,
    put_back_record,
    quarantined_of,
    replayed_origin,
    size_of,
)
from tidelog.records.record import Record

ERROR_HEADERS = (
    ("tidelog.error.reason", b"field delay: text but the table has bigint"),
    ("tidelog.error.topic", b"flights"),
    ("tidelog.error.partition", b"2"),
    ("tidelog.error.offset", b"17"),
    ("tidelog.error.timestamp", b"1700000000000"),
    ("tidelog.error.archive", b"nightly"),
)


def record(*more: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
    return Record(3, 1, b"k", value, (("h", b"1"), ("n", None), *ERROR_HEADERS, *more))


def test_origin_reason_and_original_headers_are_distinguished() -> None:
    found = quarantined_of(record())
    assert found is not None
    assert found.origin == Origin("flights", 2, 17)
    assert found.reason == "field delay: text but the table has bigint"
    assert (found.timestamp, found.archive, found.left_out_bytes) == (1700000000000, "nightly", None)
    assert found.headers == (("h", b"1"), ("n", None))


def test_a_record_from_no_archive_is_not_quarantined() -> None:
    assert quarantined_of(Record(0, 1, None, b"v", ())) is None
    no_offset = Record(0, 1, None, b"v", (*ERROR_HEADERS[:3], ("tidelog.error.offset", b"soon")))
    assert quarantined_of(no_offset) is None


def test_a_note_is_no_quarantined_record_and_names_its_origin() -> None:
    found = quarantined_of(record())
    assert found is not None
    note = note_of(found, 42)
    assert quarantined_of(note) is None
    assert replayed_origin(note) == found.origin
    assert replayed_origin(record()) is None
    assert note.key == b"k"


def test_a_record_is_replayed_unchanged_with_its_origin_even_the_second_time() -> None:
    found = quarantined_of(record((REPLAY_ORIGIN, b"flights-2@3")))
    assert found is not None
    back = put_back_record(found)
    assert (back.key, back.value, back.timestamp) == (b"k", b"v", 1700000000000)
    assert back.headers == (("h", b"1"), ("n", None), (REPLAY_ORIGIN, b"flights-2@17"))


def test_an_omitted_value_is_recognized() -> None:
    found = quarantined_of(record(("tidelog.error.left.out.bytes", b"9000"), value=None))
    assert found is not None
    assert found.left_out_bytes == 9000


def test_batches_keep_order_and_size() -> None:
    records = [Record(0, 1, None, bytes(400), ()) for _ in range(7)]
    own = size_of(records[0])
    batches = batches_of(records, 1024 + 3 * own)
    assert [[each.offset for each in batch] for batch in batches] == [[0, 1, 2], [0, 1, 2], [0]]
    assert [len(batch) for batch in batches_of(records[:2], 10)] == [1, 1]
    assert batches_of([], 10) == []
