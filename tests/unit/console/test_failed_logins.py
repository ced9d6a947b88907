"""Failed logins: how many passwords somebody can try."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.sessions import (
    INTERVAL_OF_A_SOURCE_MS,
    INTERVAL_OF_ALL_MS,
    MAX_OF_A_SOURCE,
    MAX_OF_ALL,
    MAX_SOURCES,
    FailedLogins,
)
from tidelog.kernel.instants import MonotonicMs

ALICE = ("192.0.2.1", "alice")
NOW = MonotonicMs(1_000_000)


def later(by_ms: int) -> MonotonicMs:
    return MonotonicMs(NOW + by_ms)


def test_a_source_that_fails_often_waits() -> None:
    failed = FailedLogins()
    assert [failed.begin(ALICE, NOW) for _ in range(MAX_OF_A_SOURCE)] == [0] * MAX_OF_A_SOURCE
    assert failed.begin(ALICE, NOW) == INTERVAL_OF_A_SOURCE_MS
    assert failed.begin(ALICE, later(INTERVAL_OF_A_SOURCE_MS - 1)) == 1
    assert failed.begin(("192.0.2.1", "bob"), NOW) == 0
    assert failed.begin(("192.0.2.2", "alice"), NOW) == 0
    assert failed.begin(ALICE, later(INTERVAL_OF_A_SOURCE_MS)) == 0
    assert failed.begin(ALICE, later(INTERVAL_OF_A_SOURCE_MS)) == INTERVAL_OF_A_SOURCE_MS


def test_logins_that_succeed_do_not_count() -> None:
    failed = FailedLogins()
    for _ in range(10 * MAX_OF_ALL):
        assert failed.begin(ALICE, NOW) == 0
        failed.did_not_fail(ALICE)
    assert len(failed) == 0


def test_all_sources_together_wait() -> None:
    failed = FailedLogins()
    for number in range(MAX_OF_ALL):
        assert failed.begin(("192.0.2.1", f"user-{number}"), NOW) == 0
    assert failed.begin(ALICE, NOW) == INTERVAL_OF_ALL_MS
    assert failed.begin(ALICE, later(INTERVAL_OF_ALL_MS)) == 0


def test_the_number_of_sources_is_bounded() -> None:
    failed = FailedLogins()
    for number in range(MAX_SOURCES + 50):
        assert failed.begin(("192.0.2.1", f"user-{number}"), later(number * INTERVAL_OF_ALL_MS)) == 0
    assert len(failed) == MAX_SOURCES


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 3), st.booleans()), max_size=300))
def test_no_sequence_lets_more_failures_pass(steps: list[tuple[int, int, bool]]) -> None:
    failed = FailedLogins()
    now_ms = NOW
    passed: dict[int, int] = {}
    for waited_ms, user, succeeds in steps:
        now_ms = MonotonicMs(now_ms + waited_ms)
        if failed.begin(("192.0.2.1", f"user-{user}"), now_ms):
            continue
        if succeeds:
            failed.did_not_fail(("192.0.2.1", f"user-{user}"))
        else:
            passed[user] = passed.get(user, 0) + 1
    elapsed_ms = now_ms - NOW
    # A login takes one back only of what it added, so the bound holds with successes in between, too.
    assert all(
        count <= MAX_OF_A_SOURCE + elapsed_ms / INTERVAL_OF_A_SOURCE_MS + 1 for count in passed.values()
    )
    assert sum(passed.values()) <= MAX_OF_ALL + elapsed_ms / INTERVAL_OF_ALL_MS + 1
