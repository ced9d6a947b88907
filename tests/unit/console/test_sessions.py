"""Sessions and failed logins: their bounds, when sessions end, and how many passwords somebody can try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.console.core.sessions import (
    IDLE_MS,
    INTERVAL_OF_A_SOURCE_MS,
    INTERVAL_OF_ALL_MS,
    LIFETIME_MS,
    MAX_OF_A_SOURCE,
    MAX_OF_ALL,
    MAX_SESSIONS,
    MAX_SOURCES,
    FailedLogins,
    Sessions,
    TooManySessionsError,
)
from tidelog.kernel.instants import MonotonicMs

NOW = MonotonicMs(1_000_000)
ALICE = ("192.0.2.1", "alice")


def later(by_ms: int) -> MonotonicMs:
    return MonotonicMs(NOW + by_ms)


def test_only_the_token_of_a_session_finds_it() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.begin("token-a", "alice", "a", NOW)
    found = sessions.find("token-a", NOW, is_use=True)
    assert found is not None
    assert found.value == "a"
    for other in ("", "token-", "token-b", "token-a ", "\udcff"):
        assert sessions.find(other, NOW, is_use=True) is None


def test_a_session_ends_when_it_is_not_used() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.begin("token", "alice", "a", NOW)
    assert sessions.find("token", later(IDLE_MS - 1), is_use=True) is not None
    assert sessions.find("token", later(2 * IDLE_MS - 2), is_use=False) is not None
    assert sessions.find("token", later(2 * IDLE_MS - 1), is_use=True) is None
    assert sessions.end_expired(later(2 * IDLE_MS - 1)) == ["a"]
    assert len(sessions) == 0


def test_a_session_ends_after_its_lifetime_although_it_is_used() -> None:
    sessions: Sessions[str] = Sessions()
    sessions.begin("token", "alice", "a", NOW)
    for at_ms in range(0, LIFETIME_MS, IDLE_MS // 2):
        assert sessions.find("token", later(at_ms), is_use=True) is not None
    assert sessions.find("token", later(LIFETIME_MS), is_use=True) is None


def test_a_session_ends_with_its_login() -> None:
    sessions: Sessions[str] = Sessions()
    assert sessions.next_end_ms() is None
    sessions.begin("token-a", "alice", "a", NOW)
    sessions.begin("token-b", "bob", "b", NOW, 5_000)
    sessions.begin("token-c", "carol", "c", NOW, 2 * LIFETIME_MS)
    assert sessions.next_end_ms() == later(5_000)
    assert sessions.find("token-b", later(4_999), is_use=True) is not None
    assert sessions.find("token-b", later(5_000), is_use=True) is None
    assert sessions.end_expired(later(5_000)) == ["b"]
    assert sessions.next_end_ms() == later(LIFETIME_MS)


def test_one_user_cannot_keep_the_others_out() -> None:
    sessions: Sessions[int] = Sessions()
    with pytest.raises(TooManySessionsError):
        for number in range(MAX_SESSIONS):
            assert sessions.begin(f"token-{number}", "alice", number, NOW) == []
    for number in range(MAX_SESSIONS // 3):
        ended = sessions.begin(f"token-b{number}", "bob", -1 - number, NOW)
        assert all(each >= 0 for each in ended)  # only alice loses sessions
    assert len(sessions) <= MAX_SESSIONS
    with pytest.raises(TooManySessionsError):
        sessions.begin("token-x", "alice", 99, NOW)


def test_other_users_do_not_lose_their_sessions_to_a_new_one() -> None:
    sessions: Sessions[int] = Sessions()
    for number in range(MAX_SESSIONS):
        sessions.begin(f"token-{number}", f"user-{number}", number, NOW)
    with pytest.raises(TooManySessionsError):
        sessions.begin("token-x", "alice", 99, NOW)
    assert len(sessions) == MAX_SESSIONS
    assert sessions.begin("token-x", "alice", 99, later(IDLE_MS)) == list(range(MAX_SESSIONS))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, IDLE_MS)), max_size=60))
def test_values_end_once_and_numbers_stay_bounded(steps: list[tuple[int, int, int]]) -> None:
    """Each value that went in comes out once, at its end or with the last ones."""
    sessions: Sessions[int] = Sessions()
    now_ms = NOW
    ended: list[int] = []
    begun: set[int] = set()
    for number, (user, action, passed_ms) in enumerate(steps):
        now_ms = MonotonicMs(now_ms + passed_ms)
        if action == 0:
            try:
                ended += sessions.begin(f"token-{number}", f"user-{user}", number, now_ms)
            except TooManySessionsError:
                continue
            begun.add(number)
        elif action == 1 and number:
            value = sessions.end(f"token-{number - 1}")
            ended += [] if value is None else [value]
        else:
            ended += sessions.end_expired(now_ms)
        assert len(sessions) <= MAX_SESSIONS
    assert len(ended) == len(set(ended))
    assert set(ended) | set(sessions.end_all()) == begun


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
