"""The hierarchical timing wheel (Kafka's TimingWheel), compared with a sorted list of deadlines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.kernel.timer import DEFAULT_TICK_MS, DEFAULT_WHEEL_SIZE, TimerEntry, TimingWheel


def test_defaults_are_those_of_kafka() -> None:
    assert (DEFAULT_TICK_MS, DEFAULT_WHEEL_SIZE) == (1, 20)


@pytest.mark.parametrize(
    ("delay_ms", "wheel_count"),
    [(1, 1), (19, 1), (20, 2), (399, 2), (400, 3), (7_999, 3), (8_000, 4), (160_000, 5), (86_400_000, 7)],
)
def test_overflow_wheels_are_made_on_demand(delay_ms: int, wheel_count: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add("a", delay_ms)
    assert wheel.wheel_count == wheel_count
    assert wheel.advance(delay_ms - 1) == []
    assert wheel.advance(delay_ms) == ["a"]


def test_an_entry_cascades_from_wheel_to_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add("a", 445)
    assert wheel.next_expiry_ms() == 400  # a bucket of 400 ms
    assert wheel.advance(400) == []
    assert wheel.next_expiry_ms() == 440  # a bucket of 20 ms
    assert wheel.advance(440) == []
    assert wheel.next_expiry_ms() == 445  # a bucket of 1 ms
    assert wheel.advance(445) == ["a"]
    assert wheel.next_expiry_ms() is None


def test_a_deadline_in_the_past_is_due_at_the_next_advance() -> None:
    wheel: TimingWheel[str] = TimingWheel(start_ms=1000)
    entry = wheel.add("late", 7)
    assert entry.is_pending
    assert wheel.next_expiry_ms() == 1000
    assert wheel.advance(1000) == ["late"]
    assert not entry.is_pending
    assert not entry.cancel()


def test_a_bucket_emptied_by_cancelling_causes_no_wake_up() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    entries = [wheel.add(number, 50_000) for number in range(1000)]
    assert wheel.next_expiry_ms() is not None
    assert all(entry.cancel() for entry in entries)
    assert len(wheel) == 0
    assert wheel.next_expiry_ms() is None
    assert wheel.queued_bucket_count == 0


def test_the_queue_holds_buckets_not_timers() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    for number in range(20_000):
        wheel.add(number, 1 + number * 7 % 100_000)
    assert wheel.queued_bucket_count <= wheel.wheel_count * DEFAULT_WHEEL_SIZE
    assert sorted(wheel.advance(100_000)) == list(range(20_000))


def test_after_an_idle_hour_a_timer_goes_to_the_lowest_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.skip_idle(3_600_000)
    wheel.add("soon", 3_600_005)
    assert wheel.wheel_count == 1
    wheel.skip_idle(3_600_010)  # an entry is due, so the clock does not jump over it
    assert wheel.current_ms == 3_600_000
    assert wheel.advance(3_600_010) == ["soon"]


@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(0, 20), (1, 1), (-1, 20)])
def test_impossible_wheels_are_refused(tick_ms: int, wheel_size: int) -> None:
    with pytest.raises(ValueError, match="need at least"):
        TimingWheel(tick_ms, wheel_size)


@given(
    tick_ms=st.integers(1, 50),
    wheel_size=st.integers(2, 30),
    start_ms=st.integers(0, 10**12),
    delays=st.lists(st.integers(-100, 10**7), max_size=60),
)
def test_driven_by_next_expiry_everything_expires_in_its_tick(
    tick_ms: int, wheel_size: int, start_ms: int, delays: list[int]
) -> None:
    """If the wheel is advanced exactly at the requested times, each timer expires in the tick of its
    deadline, in order.
    """
    wheel: TimingWheel[int] = TimingWheel(tick_ms, wheel_size, start_ms)
    for delay_ms in delays:
        wheel.add(start_ms + delay_ms, start_ms + delay_ms)
    expired: list[int] = []
    wake_ups = 0
    while (now_ms := wheel.next_expiry_ms()) is not None:
        wake_ups += 1
        for deadline_ms in wheel.advance(now_ms):
            assert deadline_ms < now_ms + tick_ms, "early"
            assert deadline_ms >= now_ms or deadline_ms < start_ms + tick_ms, "late"
            expired.append(deadline_ms)
    ticks = [max(deadline_ms, start_ms) // tick_ms for deadline_ms in expired]
    assert ticks == sorted(ticks)
    assert sorted(expired) == sorted(start_ms + delay_ms for delay_ms in delays)
    assert wake_ups <= (len(delays) + 1) * wheel.wheel_count, "woken in vain"
    assert len(wheel) == 0


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Any sequence of additions, cancellations and advances has the same result as a sorted list (exactly,
    with a tick of 1 ms).
    """

    @initialize(start_ms=st.integers(0, 10**13), wheel_size=st.sampled_from([2, 3, 20]))
    def start(self, start_ms: int, wheel_size: int) -> None:
        self.now_ms = start_ms
        self.wheel: TimingWheel[int] = TimingWheel(1, wheel_size, start_ms)
        self.model: dict[int, int] = {}
        self.entries: dict[int, TimerEntry[int]] = {}
        self.count = 0

    @rule(delay_ms=st.one_of(st.integers(-5, 30), st.integers(0, 10_000), st.integers(0, 10**9)))
    def add(self, delay_ms: int) -> None:
        self.count += 1
        self.model[self.count] = self.now_ms + delay_ms
        self.entries[self.count] = self.wheel.add(self.count, self.now_ms + delay_ms)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        assert self.entries[number].cancel()
        assert not self.entries[number].cancel()
        del self.model[number]

    @rule(elapsed_ms=st.one_of(st.integers(0, 25), st.integers(0, 20_000), st.integers(0, 10**9)))
    def advance(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        expired = self.wheel.advance(self.now_ms)
        due = {number for number, deadline_ms in self.model.items() if deadline_ms <= self.now_ms}
        assert set(expired) == due
        assert len(expired) == len(due)
        deadlines = [max(self.model[number], self.now_ms - elapsed_ms) for number in expired]
        assert deadlines == sorted(deadlines)
        for number in due:
            del self.model[number]
            assert not self.entries[number].is_pending

    @rule(elapsed_ms=st.integers(0, 100_000))
    def idle(self, elapsed_ms: int) -> None:
        """Advances the wheel after a sleep, which may not last longer than until the next expiry."""
        next_expiry_ms = self.wheel.next_expiry_ms()
        if next_expiry_ms is None or next_expiry_ms > self.now_ms + elapsed_ms:
            self.now_ms += elapsed_ms
            self.wheel.skip_idle(self.now_ms)

    @invariant()
    def asks_to_be_woken_in_time_and_not_in_vain(self) -> None:
        next_expiry_ms = self.wheel.next_expiry_ms()
        assert len(self.wheel) == len(self.model)
        if self.model:
            assert next_expiry_ms is not None
            assert next_expiry_ms <= max(min(self.model.values()), self.now_ms)
        else:
            assert next_expiry_ms is None
        assert self.wheel.queued_bucket_count <= self.wheel.wheel_count * 20


TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
TestWheelAgainstSortedList.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
