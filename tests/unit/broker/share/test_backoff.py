"""The wait of a record after a delivery without success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.backoff import NO_BACKOFF, RetryBackoff


def test_the_wait_grows_up_to_its_bound() -> None:
    backoff = RetryBackoff(100, 3.0, 2_000)
    assert [backoff.delay_ms(count) for count in (1, 2, 3, 4, 5)] == [100, 300, 900, 2_000, 2_000]
    assert NO_BACKOFF.delay_ms(3) == 0


@given(st.integers(0, 86_400_000), st.floats(1, 100), st.integers(1, 86_400_000), st.integers(0, 32_767))
def test_the_wait_is_bounded_and_never_shrinks(first: int, multiplier: float, most: int, count: int) -> None:
    backoff = RetryBackoff(first, multiplier, most)
    delay_ms = backoff.delay_ms(count)
    assert min(first, most) <= delay_ms <= most or delay_ms == first == 0
    assert backoff.delay_ms(count + 1) >= delay_ms
