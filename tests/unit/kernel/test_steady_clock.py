"""The steady clock never jumps, never goes back, and agrees with the wall clock again in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tidelog.kernel.clock import REPORT_INTERVAL_MS, SLEW_DIVISOR, ManualClock, SteadyClock
from tidelog.kernel.instants import is_over

HOUR_MS = 3_600_000
STEPS = st.lists(st.tuples(st.integers(0, 100_000), st.integers(-10 * HOUR_MS, 10 * HOUR_MS)), max_size=50)


@given(STEPS)
def test_it_runs_at_most_a_tenth_too_fast_or_too_slow(steps: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    began_ms, began_wall_ms = clock.monotonic_ms(), steady.wall_ms()
    before_ms = began_wall_ms
    for elapsed_ms, jump_ms in steps:
        clock.set_wall(clock.wall_ms() + jump_ms)
        clock.advance(elapsed_ms)
        now_ms = steady.wall_ms()
        elapsed_in_all_ms = clock.monotonic_ms() - began_ms
        assert before_ms <= now_ms
        assert abs(now_ms - began_wall_ms - elapsed_in_all_ms) <= elapsed_in_all_ms / SLEW_DIVISOR
        before_ms = now_ms


@pytest.mark.parametrize("call_interval_ms", [37, 1000, HOUR_MS])
@pytest.mark.parametrize("jump_ms", [-HOUR_MS // 6, HOUR_MS // 6])
def test_it_agrees_with_the_wall_clock_again(jump_ms: int, call_interval_ms: int) -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    clock.set_wall(clock.wall_ms() + jump_ms)
    for _ in range(0, abs(jump_ms) * SLEW_DIVISOR, call_interval_ms):
        assert steady.wall_ms() != clock.wall_ms()
        clock.advance(call_interval_ms)
    clock.advance(call_interval_ms)
    assert steady.wall_ms() == clock.wall_ms()


def test_the_first_correction_of_a_machine_without_a_clock_is_adopted() -> None:
    clock = ManualClock(wall_ms=1_000)
    steady = SteadyClock(clock)
    clock.set_wall(1_700_000_000_000)
    assert steady.wall_ms() == 1_700_000_000_000


def test_a_jump_is_reported_once_an_hour() -> None:
    clock = ManualClock()
    steady = SteadyClock(clock)
    with capture_logs() as logs:
        clock.set_wall(clock.wall_ms() + 6 * HOUR_MS)
        for _ in range(100):
            steady.wall_ms()
            clock.advance(1_000)
        assert [line["ahead_s"] for line in logs] == [6 * 3600]
        clock.advance(REPORT_INTERVAL_MS)
        steady.wall_ms()
        assert len(logs) == 2


def test_a_period_is_over_if_the_clock_was_set_back() -> None:
    assert not is_over(1_000, 60, 1_059)
    assert is_over(1_000, 60, 1_060)
    assert is_over(1_000, 60, 999)
