"""The lag of groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.group_lag import PartitionLag, lag_of, total_of
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)
OFFSETS = st.none() | st.integers(0, 100)


def test_an_open_transaction_holds_back_only_the_stable_lag() -> None:
    lag = PartitionLag(4, high_watermark=10, last_stable_offset=6)
    assert (lag.lag, lag.stable_lag, lag.depends_on_isolation) == (6, 2, True)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_lags_are_never_negative_and_the_stable_one_is_not_greater(
    committed: int | None, end: int | None, stable: int | None
) -> None:
    def known(offset: int | None) -> dict[TopicPartition, int]:
        return {} if offset is None else {PLACE: offset}

    lag = lag_of(PLACE, known(committed), known(end), known(stable))
    assert (lag.lag is None) == (committed is None or end is None)
    if lag.lag is not None and lag.stable_lag is not None:
        assert 0 <= lag.stable_lag <= lag.lag
    if committed is not None and end is not None:
        assert lag.lag == max(0, end - committed)


def test_a_total_leaves_out_unknown_lags() -> None:
    assert total_of([6, None, 0]) == 6
    assert total_of([None]) is None
    assert total_of([]) is None
