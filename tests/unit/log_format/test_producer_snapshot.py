from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.partition.producer_state import ActiveProducer, ProducerState
from tidelog.log_format.directory import CorruptFileError
from tidelog.log_format.entries import SnapshotEntry, decode_snapshot, encode_snapshot

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NOW_MS = 1_700_000_000_000
ENTRIES = st.lists(
    st.builds(SnapshotEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64), max_size=5
)

# A file that Apache Kafka 4.3.1 wrote: a committed, an aborted, an open transaction, and a producer of epoch
# -1.
KAFKAS = bytes.fromhex(
    "0001a0370d8000000004"
    "0000000000000000000000000002000000000000000500000002000001a1fe45375200000000ffffffffffffffff"
    "0000000000000001000000000002000000000000000900000002000001a1fe4539b900000000ffffffffffffffff"
    "0000000000000002000000000002000000000000000d00000002000001a1fe4539fdffffffff000000000000000b"
    "00000000000aae61ffff00000002000000000000000200000002000001a1fe4530daffffffffffffffffffffffff"
)


@given(ENTRIES)
def test_round_trip(entries: list[SnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


@given(ENTRIES, st.data())
def test_any_changed_or_missing_byte_is_detected(entries: list[SnapshotEntry], draw: st.DataObject) -> None:
    data = bytearray(encode_snapshot(entries))
    position = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(CorruptFileError):
        decode_snapshot(bytes(data[:position]))
    data[position] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(CorruptFileError):
        decode_snapshot(bytes(data))


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_snapshot(data)


def test_kafkas_snapshot_is_read_and_written_identically() -> None:
    assert encode_snapshot(decode_snapshot(KAFKAS)) == KAFKAS
    state = ProducerState()
    state.load(KAFKAS, 14, NOW_MS)
    assert sorted(state.describe()) == [
        ActiveProducer(0, 0, 2, 1_795_267_311_442, 0, -1),
        ActiveProducer(1, 0, 2, 1_795_267_312_057, 0, -1),
        ActiveProducer(2, 0, 2, 1_795_267_312_125, -1, 11),
        ActiveProducer(700_001, -1, 2, 1_795_267_309_786, -1, -1),
    ]
    assert state.first_unstable_offset == 11
    # Kafka writes them in the order of a hash map.
    assert sorted(decode_snapshot(state.snapshot())) == decode_snapshot(KAFKAS)


def test_a_damaged_snapshot_leaves_the_state_alone() -> None:
    state = ProducerState()
    state.load(KAFKAS, 14, NOW_MS)
    with pytest.raises(CorruptFileError):
        state.load(KAFKAS[:-1], 60, NOW_MS)
    assert (len(state), state.end_offset) == (4, 14)
