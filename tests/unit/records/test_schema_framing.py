from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.schemas import MAX_MESSAGE_INDEXES, message_indexes, schema_id_of
from tidelog.records.varint import append_varint

ID = b"\0\0\0\1\2"


@pytest.mark.parametrize(
    ("data", "schema_id"),
    [
        (ID, 258),
        (ID + b"x", 258),
        (ID[:4], None),
        (b"", None),
        (b"\1\0\0\0\1", None),
        (b"\0\xff\xff\xff\xff", 2**32 - 1),
    ],
)
def test_schema_ids(data: bytes, schema_id: int | None) -> None:
    assert schema_id_of(data) == schema_id


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MAX_MESSAGE_INDEXES), st.binary())
def test_indexes_are_read_back(indexes: list[int], message: bytes) -> None:
    data = bytearray(ID)
    for number in (len(indexes), *indexes):
        append_varint(data, number)
    assert message_indexes(bytes(data) + message) == (tuple(indexes), len(data))


def test_the_first_message_is_written_as_no_index() -> None:
    assert message_indexes(ID + b"\0\x08") == ((0,), 6)


@pytest.mark.parametrize("end", [b"", b"\x01", b"\x02", b"\x02\x01", b"\xca\x01", b"\xff" * 20, b"\x04\x02"])
def test_malformed_indexes_are_refused(end: bytes) -> None:
    with pytest.raises(ValueError, match="the message's index is malformed"):
        message_indexes(ID + end)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(end: bytes) -> None:
    try:
        indexes, at = message_indexes(ID + end)
    except ValueError:
        return
    assert len(ID) < at <= len(ID + end)
    assert all(index >= 0 for index in indexes)
