"""The pauses of a share partition: the wait of a record, and the circuit breaker, also in the core."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    AcknowledgeType,
    DeliveryLimits,
    LogBatch,
    StateWrite,
    Wanted,
)
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.pauses import (
    Breaker,
    BreakerRules,
    BreakerState,
)
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.machine import IllegalTransitionError

RULES = BreakerRules(50, min_deliveries=4, window_ms=1_000, pause_ms=200, probe_records=2)
LIMITS = DeliveryLimits(100, 5, 100, breaker=RULES)
NOW = MonotonicMs(10_000)
CLOSED, OPEN, HALF_OPEN = BreakerState
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def after(passed_ms: int) -> MonotonicMs:
    return MonotonicMs(NOW + passed_ms)


def test_it_opens_pauses_probes_and_closes() -> None:
    breaker = Breaker()
    assert not breaker.ended(2, 1, NOW, RULES)
    assert not breaker.ended(0, 0, NOW, RULES)
    assert breaker.ended(0, 1, NOW, RULES), "half of four deliveries"
    assert (breaker.state, breaker.allowed_probes(0, RULES)) == (OPEN, 0)
    assert not breaker.tick(after(199), RULES)
    assert breaker.tick(after(200), RULES)
    assert [breaker.allowed_probes(held, RULES) for held in (0, 1, 2, 3)] == [2, 1, 0, 0]
    assert not breaker.ended(1, 0, after(210), RULES)
    assert breaker.allowed_probes(0, RULES) == 1
    assert breaker.ended(1, 0, after(220), RULES)
    assert (breaker.state, breaker.allowed_probes(9, RULES)) == (CLOSED, None)
    assert not breaker.ended(0, 3, after(230), RULES), "the window begins again"


def test_a_failed_probe_begins_another_pause() -> None:
    breaker = Breaker(NOW)
    assert breaker.state is OPEN
    assert breaker.tick(NOW, RULES)
    assert breaker.ended(1, 1, after(5), RULES)
    assert (breaker.state, breaker.paused_until_ms) == (OPEN, after(205))


def test_old_results_leave_the_window() -> None:
    breaker = Breaker()
    breaker.ended(0, 3, NOW, RULES)
    assert not breaker.ended(1, 0, after(1_000), RULES)
    assert breaker.ended(0, 3, after(1_500), RULES)


def test_a_group_without_a_breaker_is_never_paused() -> None:
    off = RULES._replace(failure_percentage=0)
    breaker = Breaker()
    assert not breaker.ended(0, 1_000, NOW, off)
    paused = Breaker(after(100))
    assert paused.allowed_probes(0, off) is None
    assert paused.tick(NOW, off)
    assert paused.state is CLOSED


def test_a_breaker_does_not_skip_its_pause() -> None:
    with pytest.raises(IllegalTransitionError):
        Breaker()._enter(HALF_OPEN, NOW)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 300)), max_size=40),
    st.integers(1, 100),
)
def test_it_opens_exactly_when_the_window_is_too_bad(
    steps: list[tuple[int, int, int]], percentage: int
) -> None:
    """The window is known to a tenth of its length, so results of the oldest tenth may count or not."""
    rules = RULES._replace(failure_percentage=percentage)
    breaker, now, history = Breaker(), NOW, list[tuple[int, int, int]]()
    for successes, failures, passed_ms in steps:
        now = MonotonicMs(now + passed_ms)
        breaker.tick(now, rules)
        state = breaker.state
        breaker.ended(successes, failures, now, rules)
        if state is not CLOSED:
            history.clear()
            continue
        history.append((now, successes, failures))
        verdicts = set()
        for window_ms in (900, 1_000):
            recent = [found for found in history if found[0] > now - window_ms]
            failed = sum(found[2] for found in recent)
            total = failed + sum(found[1] for found in recent)
            verdicts.add(total >= 4 and failed * 100 >= percentage * total and successes + failures > 0)
        if len(verdicts) == 1:
            assert (breaker.state is OPEN) == verdicts.pop()


# -- in the core


def fetch(core: SharePartitionCore, now_ms: MonotonicMs) -> list[tuple[int, int]]:
    found = core.acquire(Wanted("a", 100, 100), [LogBatch(0, 9)], now_ms, LIMITS)
    return [(taken.first, taken.last) for taken in found]


def answer(core: SharePartitionCore, first: int, last: int, kind: AcknowledgeType, now_ms: int) -> StateWrite:
    core.acknowledge("a", [AcknowledgedBatch(first, last, [kind])], MonotonicMs(now_ms), LIMITS)
    write = core.next_write()
    assert write is not None
    core.write_succeeded(MonotonicMs(now_ms), LIMITS)
    later = core.next_write()
    if later is None:
        return write
    core.write_succeeded(MonotonicMs(now_ms), LIMITS)
    return later


def test_a_share_partition_pauses_probes_and_goes_on() -> None:
    core = SharePartitionCore(0, 0, 0)
    assert fetch(core, NOW) == [(0, 9)]
    assert answer(core, 0, 3, RELEASE, NOW).paused_until_ms == after(200)
    assert not core.may_acquire(LIMITS)
    assert not fetch(core, NOW)
    assert core.next_deadline_ms() == after(100), "the locks of the other records end"
    core.expire(after(100), LIMITS)
    assert core.next_deadline_ms() == after(200)
    assert core.expire(after(200), LIMITS), "waiting fetches are woken up"
    assert fetch(core, after(200)) == [(0, 1)]
    assert not core.may_acquire(LIMITS)
    assert answer(core, 0, 0, ACCEPT, NOW + 210).paused_until_ms == after(200)
    assert not fetch(core, after(210)), "one probe has succeeded, and the other one is in flight"
    assert answer(core, 1, 1, ACCEPT, NOW + 220).paused_until_ms == 0
    assert fetch(core, after(220)) == [(2, 9)]


def test_an_acknowledgement_whose_write_fails_does_not_count() -> None:
    """The member may repeat it, and then it counts once."""
    core = SharePartitionCore(0, 0, 0, paused_until_ms=after(0))
    core.expire(after(0), LIMITS)
    assert fetch(core, NOW) == [(0, 1)]
    for _ in range(3):
        core.acknowledge("a", [AcknowledgedBatch(0, 0, [ACCEPT])], NOW, LIMITS)
        assert core.next_write() is not None
        core.write_failed()
    assert core.breaker.state is BreakerState.HALF_OPEN
    answer(core, 0, 1, ACCEPT, NOW)
    assert core.breaker.state is BreakerState.CLOSED


def test_ended_locks_are_failures() -> None:
    core = SharePartitionCore(0, 0, 0)
    fetch(core, NOW)
    core.expire(after(100), LIMITS)
    assert core.breaker.state is OPEN
    write = core.next_write()
    assert write is not None
    assert write.paused_until_ms == after(300)


def test_a_pause_whose_write_was_refused_is_written_again() -> None:
    core = SharePartitionCore(0, 0, 0)
    fetch(core, NOW)
    core.expire(after(100), LIMITS)
    assert core.next_write() is not None
    core.write_failed()
    write = core.next_write()
    assert write is not None
    assert write.paused_until_ms == after(300)
    assert not core.is_idle


def test_a_pause_and_its_probes_survive_a_new_leader() -> None:
    core = SharePartitionCore(1, 0, 0, paused_until_ms=after(50))
    assert not fetch(core, NOW)
    assert core.next_deadline_ms() == after(50)
    assert core.expire(after(50), LIMITS)
    assert fetch(core, after(50)) == [(0, 1)]
