"""The token bucket of throttled replication, for any sequence of times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.replication.throttle import (
    BURST_MS,
    UNLIMITED,
    ReplicationThrottle,
    is_throttled,
)


def test_nothing_is_throttled_by_default() -> None:
    throttle = ReplicationThrottle()
    throttle.spend(1 << 40, now_ms=0)
    assert not throttle.is_limited
    assert throttle.wait_ms(0) == 0


def test_a_negative_level_is_waited_off() -> None:
    throttle = ReplicationThrottle(1000, now_ms=0)
    throttle.spend(1500, now_ms=0)
    assert throttle.is_exceeded(0)
    assert throttle.is_exceeded(500)
    assert not throttle.is_exceeded(502)


def test_a_rate_of_0_stops_replication_and_is_checked_again() -> None:
    throttle = ReplicationThrottle(0, now_ms=0)
    assert throttle.wait_ms(10**9) == BURST_MS
    throttle.set_rate(UNLIMITED, now_ms=10**9)
    assert throttle.wait_ms(10**9) == 0


def test_throttled_replicas_are_named_by_the_setting() -> None:
    assert is_throttled(("*",), 3, 1)
    assert is_throttled(("1:1", "3:1"), 3, 1)
    assert not is_throttled(("3:2", "1:1"), 3, 1)
    assert not is_throttled((), 3, 1)


@given(
    st.integers(1, 10_000_000),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 200_000)), min_size=1, max_size=50),
)
def test_no_more_is_copied_than_rate_and_burst_allow(rate: int, steps: list[tuple[int, int]]) -> None:
    throttle, now_ms, copied, largest = ReplicationThrottle(rate, now_ms=0), 0, 0, 0
    for wait_ms, size_bytes in steps:
        now_ms += wait_ms
        if throttle.wait_ms(now_ms) == 0:
            throttle.spend(size_bytes, now_ms)
            copied += size_bytes
            largest = max(largest, size_bytes)
    assert copied <= rate * (now_ms + BURST_MS) / 1000 + largest


@given(st.integers(1, 10_000_000), st.integers(1, 5_000_000))
def test_after_the_returned_wait_a_replica_may_continue(rate: int, size_bytes: int) -> None:
    throttle, now_ms = ReplicationThrottle(rate, now_ms=0), 0
    throttle.spend(size_bytes, now_ms)
    waits = 0
    while (wait_ms := throttle.wait_ms(now_ms)) > 0:
        now_ms += wait_ms
        waits += 1
    assert waits <= size_bytes / rate * 1000 / BURST_MS + 2
