"""Windowed rates and token buckets, for any sequence of times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.security.client_quotas import MutationBucket, WindowedRate
from tidelog.kernel.instants import MonotonicMs

SAMPLES, SAMPLE_MS = 11, 1000


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def test_a_first_request_counts_over_the_whole_window() -> None:
    rate = WindowedRate(SAMPLES, SAMPLE_MS)
    rate.record(1_000_000, at(5))
    assert rate.per_s(at(5)) == 100_000
    assert rate.throttle_ms(100_000, at(5)) == 0
    assert rate.throttle_ms(50_000, at(5)) == 10_000


def test_a_rate_is_forgotten_after_the_window() -> None:
    rate = WindowedRate(SAMPLES, SAMPLE_MS)
    rate.record(500, at(0))
    assert not rate.is_idle(at(SAMPLES * SAMPLE_MS - 1))
    assert rate.is_idle(at(SAMPLES * SAMPLE_MS))
    assert rate.per_s(at(SAMPLES * SAMPLE_MS)) == 0


def test_a_value_can_be_taken_back() -> None:
    rate = WindowedRate(SAMPLES, SAMPLE_MS)
    rate.record(500, at(0))
    rate.record(-500, at(1))
    assert rate.throttle_ms(1, at(1)) == 0


@given(
    st.integers(1000, 10_000_000),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 200_000)), min_size=1, max_size=80),
)
def test_a_client_that_waits_stays_near_its_limit(limit: int, steps: list[tuple[int, int]]) -> None:
    """A client that waits as it is told uses its limit, the burst of one window, and two large requests."""
    rate, now_ms, used, largest = WindowedRate(SAMPLES, SAMPLE_MS), 0, 0, 0
    for pause_ms, size in steps:
        now_ms += pause_ms
        rate.record(size, at(now_ms))
        used, largest = used + size, max(largest, size)
        assert used <= limit * (SAMPLES * SAMPLE_MS + now_ms) / 1000 + 2 * largest
        now_ms += rate.throttle_ms(limit, at(now_ms))


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 5000)), min_size=1, max_size=50),
)
def test_a_bucket_allows_its_burst_its_rate_and_one_request(limit: int, steps: list[tuple[int, int]]) -> None:
    bucket, now_ms, used, largest = MutationBucket(SAMPLES, SAMPLE_MS), 0, 0, 0
    for pause_ms, mutations in steps:
        now_ms += pause_ms
        wait_ms = bucket.throttle_ms(limit, at(now_ms))
        assert bucket.throttle_ms(limit, at(now_ms + wait_ms)) <= 1
        if wait_ms == 0:
            bucket.record(mutations, limit, at(now_ms))
            used += mutations
            largest = max(largest, mutations)
    assert used <= limit * (SAMPLES * SAMPLE_MS + now_ms) / 1000 + largest + 1


def test_a_full_bucket_is_idle() -> None:
    bucket = MutationBucket(SAMPLES, SAMPLE_MS)
    assert bucket.is_idle(10, at(0))
    bucket.record(1, 10, at(0))
    assert not bucket.is_idle(10, at(0))
    assert bucket.is_idle(10, at(100))
