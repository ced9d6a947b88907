"""Brokers that did not answer are left out for a while."""

from __future__ import annotations

import pytest

from tidelog.console.silent_brokers import SILENT_MS, SilentBrokers
from tidelog.model.instants import MonotonicMs


class Clock:
    now_ms = 0

    def __call__(self) -> MonotonicMs:
        return MonotonicMs(self.now_ms)


def test_a_silent_broker_is_asked_again_later() -> None:
    clock = Clock()
    brokers = SilentBrokers(clock)
    with brokers.asking() as silent:
        assert silent == set()
        silent.add(2)
        clock.now_ms = 5_000  # the time for which the page waited
    for at_ms, expected in ((5_000, {2}), (5_000 + SILENT_MS - 1, {2}), (5_000 + SILENT_MS, set())):
        clock.now_ms = at_ms
        with brokers.asking() as silent:
            assert silent == expected


def test_a_reading_that_fails_remembers_the_broker_too() -> None:
    brokers = SilentBrokers(Clock())
    with pytest.raises(ValueError, match="x"), brokers.asking() as silent:
        silent.add(1)
        raise ValueError("x")
    with brokers.asking() as silent:
        assert silent == {1}
