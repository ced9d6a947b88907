"""The aborted transactions of the batches that a share group reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.aborted import AbortedBatches, AbortedTransaction
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record


@given(
    ends=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=12),
    offset=st.integers(0, 40),
    producer_id=st.integers(1, 4),
    is_transactional=st.booleans(),
)
def test_a_batch_is_found_as_by_a_look_at_all_transactions(
    ends: list[tuple[int, int]], offset: int, producer_id: int, is_transactional: bool
) -> None:
    """Each pair is a producer whose transaction ends, and the offsets to the end of the next one."""
    aborted, last = [], 0
    begins = dict.fromkeys((1, 2, 3), 0)
    for producer, distance in ends:
        last += distance
        aborted.append(AbortedTransaction(producer, begins[producer], last, 0))
        begins[producer] = last + distance
    aborted = [found for found in aborted if found.first_offset <= found.last_offset]
    batch = build_batch(
        [Record(offset, 0, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=is_transactional,
    )
    expected = is_transactional and any(
        found.producer_id == producer_id and found.first_offset <= offset <= found.last_offset
        for found in aborted
    )
    assert (parse_header(memoryview(batch)) in AbortedBatches(aborted)) == expected
