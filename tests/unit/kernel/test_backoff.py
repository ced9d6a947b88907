"""The pauses between attempts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.pauses import NO_BACKOFF
from tidelog.kernel.instants import Backoff


def test_the_pause_grows_up_to_its_bound() -> None:
    backoff = Backoff(100, 2_000, 3.0)
    assert [backoff.delay_ms(count) for count in (1, 2, 3, 4, 5)] == [100, 300, 900, 2_000, 2_000]
    assert NO_BACKOFF.delay_ms(3) == 0


def test_the_pause_doubles_by_default() -> None:
    assert [Backoff(50, 1_000).delay_ms(count) for count in range(7)] == [50, 50, 100, 200, 400, 800, 1_000]


def test_jitter_makes_a_pause_up_to_a_fifth_shorter_or_longer() -> None:
    assert [Backoff(100, 1_000, jitter=lambda at=at: at).delay_ms(2) for at in (0, 0.5, 1)] == [160, 200, 240]


@given(st.integers(0, 86_400_000), st.floats(1, 100), st.integers(1, 86_400_000), st.integers(0, 32_767))
def test_the_pause_is_bounded_and_never_shrinks(first: int, multiplier: float, most: int, count: int) -> None:
    backoff = Backoff(first, most, multiplier)
    delay_ms = backoff.delay_ms(count)
    assert min(first, most) <= delay_ms <= most or delay_ms == first == 0
    assert backoff.delay_ms(count + 1) >= delay_ms
