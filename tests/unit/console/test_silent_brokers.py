"""Brokers that did not answer are left out for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import ClientError, NoAnswerError, UnreachableError
from tidelog.console.readings import MAX_ASKED, SILENT_MS, SilentBrokers, ask_one
from tidelog.kernel.clock import ManualClock


def test_a_silent_broker_is_asked_again_later() -> None:
    clock = ManualClock()
    brokers = SilentBrokers(clock.monotonic_ms)
    with brokers.asking() as silent:
        assert silent == set()
        silent.add(2)
        clock.advance(5_000)  # the time for which the page waited
    for at_ms, expected in ((5_000, {2}), (5_000 + SILENT_MS - 1, {2}), (5_000 + SILENT_MS, set())):
        clock.advance(at_ms - clock.monotonic_ms())
        with brokers.asking() as silent:
            assert silent == expected


def test_a_reading_that_fails_remembers_the_broker_too() -> None:
    brokers = SilentBrokers(ManualClock().monotonic_ms)
    with pytest.raises(ValueError, match="x"), brokers.asking() as silent:
        silent.add(1)
        raise ValueError("x")
    with brokers.asking() as silent:
        assert silent == {1}


@given(
    brokers=st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True).map(sorted),
    known=st.sets(st.integers(1, 9)),
    frozen=st.sets(st.integers(1, 9)),
    error=st.sampled_from([NoAnswerError("no answer"), UnreachableError("no connection")]),
)
def test_one_of_several_brokers_is_asked_in_bounded_time(
    brokers: list[int], known: set[int], frozen: set[int], error: ClientError
) -> None:
    asked: list[int] = []

    def ask(broker_id: int) -> str:
        asked.append(broker_id)
        if broker_id in frozen:
            raise error
        return f"answer of {broker_id}"

    silent = set(known)
    try:
        chosen, answer = ask_one(brokers, silent, ask)
    except (NoAnswerError, UnreachableError):
        assert set(asked) <= frozen
        assert len(asked) == min(MAX_ASKED, len(set(brokers) - known))
    else:
        assert answer == f"answer of {chosen}"
        assert asked[-1] == chosen
        assert set(asked[:-1]) <= frozen
    assert not known & set(asked)
    assert silent == known | (frozen & set(asked))
    assert asked == sorted(asked)
