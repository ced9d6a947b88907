from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.varint import CorruptVarintError, append_varint, read_varint

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(INT64, st.binary(max_size=4), st.binary(max_size=4))
def test_round_trip_between_other_bytes(value: int, before: bytes, after: bytes) -> None:
    output = bytearray(before)
    append_varint(output, value)
    output += after
    assert read_varint(output, len(before)) == (value, len(output) - len(after))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (300, "d804")],
)
def test_known_bytes(value: int, encoded: str) -> None:
    output = bytearray()
    append_varint(output, value)
    assert output.hex() == encoded


@given(INT64)
def test_incomplete_varints_are_refused(value: int) -> None:
    output = bytearray()
    append_varint(output, value)
    for end in range(len(output)):
        with pytest.raises(CorruptVarintError):
            read_varint(output[:end], 0)


def test_a_varint_without_end_is_refused() -> None:
    with pytest.raises(CorruptVarintError):
        read_varint(b"\xff" * 100, 0)
