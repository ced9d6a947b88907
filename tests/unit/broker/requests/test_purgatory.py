"""The purgatory (Kafka's WaiterPurgatory) ends every operation exactly once and keeps nothing of
it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.broker.requests.waiting import MAX_UNWATCHED_MS, Purgatory, Waiter
from tidelog.kernel.timer import VirtualTimer
from tidelog.model.fair_budget import FairBudget


class Waiting(Waiter):
    """An operation that completes when the value of its key has reached a bound."""

    __slots__ = ("__weakref__", "connection", "events", "needed", "values")

    def __init__(self, values: dict[str, int], needed: dict[str, int], connection: str = "") -> None:
        super().__init__()
        self.connection = connection
        self.values = values
        self.needed = needed
        self.events: list[str] = []

    @property
    def watched_keys(self) -> Sequence[Hashable]:
        """The keys that have room."""
        return self._keys

    def owner(self) -> str:
        return self.connection

    def on_change(self, key: Hashable | None) -> bool:
        return all(self.values.get(key, 0) >= value for key, value in self.needed.items())

    def on_complete(self) -> None:
        self.events.append("complete")

    def on_expire(self) -> None:
        self.events.append("expire")


def fail(operation: Waiter, error: Exception) -> None:
    raise AssertionError(f"{operation} failed") from error


def new_purgatory() -> tuple[VirtualTimer, Purgatory]:
    timer = VirtualTimer()
    return timer, Purgatory("Produce", timer, fail)


def test_a_condition_that_holds_already_is_answered_at_once() -> None:
    timer, purgatory = new_purgatory()
    operation = Waiting({"a": 1}, {"a": 1})
    assert purgatory.watch(operation, ["a"], 100)
    assert operation.events == ["complete"]
    assert (len(purgatory), purgatory.key_count, len(timer)) == (0, 0, 0)


def test_an_operation_completes_when_its_last_key_is_reached() -> None:
    timer, purgatory = new_purgatory()
    values: dict[str, int] = {}
    operation = Waiting(values, {"a": 1, "b": 2})
    assert not purgatory.watch(operation, ["a", "b", "a"], 100)
    assert purgatory.watched_count == 2
    values["a"] = 1
    assert purgatory.changed("a") == 0
    values["b"] = 2
    assert purgatory.changed("b") == 1
    assert purgatory.changed("a") == 0
    assert timer.advance(1000) == 0
    assert operation.events == ["complete"]
    assert (len(purgatory), purgatory.key_count, len(timer)) == (0, 0, 0)


def test_the_others_are_left_alone_when_nothing_is_left_for_them() -> None:
    _, purgatory = new_purgatory()
    values: dict[str, int] = {}
    operations = [Waiting(values, {"a": 1}) for _ in range(3)]
    for operation in operations:
        purgatory.watch(operation, ["a"], 100)
    values["a"] = 1
    assert purgatory.changed("a", lambda: not operations[1].is_done) == 2
    assert [operation.is_done for operation in operations] == [True, True, False]
    assert purgatory.changed("a") == 1


def test_the_deadline_expires_and_then_completes_it() -> None:
    timer, purgatory = new_purgatory()
    operation = Waiting({}, {"a": 1})
    purgatory.watch(operation, ["a"], 100)
    timer.advance(99)
    assert operation.events == []
    timer.advance(100)
    assert operation.events == ["expire", "complete"]
    assert purgatory.expired_total == 1
    assert purgatory.key_count == 0


def test_a_deadline_in_the_past_expires_it_at_once() -> None:
    timer, purgatory = new_purgatory()
    timer.advance(50)
    operation = Waiting({}, {"a": 1})
    assert purgatory.watch(operation, ["a"], 50)
    assert operation.events == ["expire", "complete"]


def test_a_cancelled_operation_is_not_answered_and_is_removed() -> None:
    timer, purgatory = new_purgatory()
    operation = Waiting({"a": 0}, {"a": 1})
    purgatory.watch(operation, ["a", "b"], 100)
    assert purgatory.cancel(operation)
    assert not purgatory.cancel(operation)
    assert not purgatory.complete(operation)
    timer.advance(1000)
    assert operation.events == []
    reference = weakref.ref(operation)
    del operation
    gc.collect()
    assert reference() is None
    assert (len(purgatory), purgatory.key_count, len(timer)) == (0, 0, 0)


def test_an_operation_without_room_waits_for_a_while() -> None:
    """If it completed at once, its client would ask again at once."""
    timer = VirtualTimer()
    budget = FairBudget(12)
    purgatory = Purgatory("Fetch", timer, fail, budget)
    values: dict[str, int] = {}

    def watch(client: str, keys: str, delay_ms: int = 60_000) -> Waiting:
        operation = Waiting(values, dict.fromkeys(keys, 1), client)
        assert not purgatory.watch(operation, keys, timer.monotonic_ms() + delay_ms)
        return operation

    greedy = [watch("x", "abcd") for _ in range(3)]
    single = watch("x", "a")
    assert [bool(operation.watched_keys) for operation in greedy] == [True, True, False]
    assert single.watched_keys, "one key does not count"
    other = watch("y", "abcd")
    assert other.watched_keys, "another client has its share"
    values.update(dict.fromkeys("abcd", 1))
    for key in "abcd":
        purgatory.changed(key)
    assert greedy[0].events == single.events == other.events == ["complete"]
    assert greedy[2].events == []
    timer.advance(MAX_UNWATCHED_MS)
    assert greedy[2].events == ["expire", "complete"]
    assert budget.held == 0


def test_an_operation_that_loses_its_room_waits_for_a_while() -> None:
    timer = VirtualTimer()
    budget = FairBudget(12)
    purgatory = Purgatory("Fetch", timer, fail, budget)
    held = [Waiting({}, dict.fromkeys("abcde", 1), "x") for _ in range(2)]
    for operation in held:
        purgatory.watch(operation, "abcde", timer.monotonic_ms() + 60_000)
    newcomer = Waiting({}, dict.fromkeys("abcd", 1), "y")
    purgatory.watch(newcomer, "abcd", timer.monotonic_ms() + 60_000)
    assert newcomer.watched_keys
    assert purgatory.watched_count == 9
    timer.advance(timer.monotonic_ms() + MAX_UNWATCHED_MS)
    assert sorted(len(operation.events) for operation in held) == [0, 2]
    assert purgatory.expire_all() == 2
    assert (budget.held, purgatory.watched_count, len(timer)) == (0, 0, 0)


def test_operations_without_keys_leave_nothing() -> None:
    timer, purgatory = new_purgatory()
    for _ in range(2):
        purgatory.watch(Waiting({}, {"a": 1}), [], 100)
    timer.advance(100)
    assert (purgatory.expired_total, len(purgatory), purgatory.watched_count) == (2, 0, 0)


def test_thousands_of_short_waits_leave_no_operation() -> None:
    timer, purgatory = new_purgatory()
    values = {"a": 0}
    for round_ in range(1, 2001):
        purgatory.watch(
            Waiting(values, {"a": round_}), ["a", f"only-{round_}"], timer.monotonic_ms() + 30_000
        )
        values["a"] = round_
        assert purgatory.changed("a") == 1
        timer.advance(timer.monotonic_ms() + 1)
    assert (purgatory.watched_count, purgatory.key_count, len(timer)) == (0, 0, 0)


def test_a_completion_may_watch_and_complete_others_under_the_same_key() -> None:
    timer, purgatory = new_purgatory()
    values: dict[str, int] = {}
    later = Waiting(values, {"a": 2})

    class Chained(Waiting):
        __slots__ = ()

        def on_complete(self) -> None:
            super().on_complete()
            purgatory.watch(later, ["a"], 100)
            values["a"] = 2
            purgatory.changed("a")

    first, second = Chained(values, {"a": 1}), Waiting(values, {"a": 1})
    purgatory.watch(first, ["a"], 100)
    purgatory.watch(second, ["a"], 100)
    values["a"] = 1
    purgatory.changed("a")
    assert first.events == second.events == later.events == ["complete"]
    assert (len(purgatory), len(timer)) == (0, 0)


@pytest.mark.parametrize("step", ["on_change", "on_complete", "on_expire"])
def test_a_failing_operation_does_not_stop_the_others_or_the_caller(step: str) -> None:
    failures: list[tuple[Waiter, str]] = []
    timer = VirtualTimer()
    purgatory = Purgatory("Fetch", timer, lambda op, error: failures.append((op, str(error))))
    values = {"a": 0}

    class Failing(Waiting):
        armed = False

    def raise_error(_: Failing, key: Hashable | None = None) -> bool:
        if step == "on_change" and not Failing.armed:
            return False
        raise RuntimeError("broken")

    setattr(Failing, step, raise_error)
    broken, sound = Failing(values, {"a": 1}), Waiting(values, {"a": 1})
    purgatory.watch(broken, ["a"], 100)
    purgatory.watch(sound, ["a"], 200)
    Failing.armed = True
    if step == "on_expire":
        timer.advance(150)
    values["a"] = 1
    purgatory.changed("a")
    assert failures == [(broken, "broken")]
    assert broken.is_done
    assert sound.events == ["complete"]
    assert (len(purgatory), purgatory.key_count, len(timer)) == (0, 0, 0)


def test_expire_all() -> None:
    timer, purgatory = new_purgatory()
    left = Waiting({}, {"b": 1})
    purgatory.watch(left, ["b"], 100)
    assert purgatory.expire_all() == 1
    assert left.events == ["expire", "complete"]
    assert (len(purgatory), purgatory.key_count, len(timer)) == (0, 0, 0)


MAX_WATCHED = 12


class PurgatoryAgainstModel(RuleBasedStateMachine):
    """Any sequence of watches, changes, time and cancellations has the same result as a plain list of
    conditions.
    """

    @initialize()
    def start(self) -> None:
        self.timer = VirtualTimer()
        self.purgatory = Purgatory("Fetch", self.timer, fail, FairBudget(MAX_WATCHED))
        self.values: dict[str, int] = {}
        self.waiting: dict[Waiting, int] = {}
        self.over: list[tuple[Waiting, list[str]]] = []

    def watched(self) -> list[Waiting]:
        """Returns the operations that have room."""
        return [operation for operation in self.waiting if operation.watched_keys]

    def end(self, operation: Waiting, events: list[str]) -> None:
        self.waiting.pop(operation, None)
        self.over.append((operation, events))

    @rule(
        needed=st.dictionaries(st.sampled_from("abc"), st.integers(0, 6), min_size=1),
        delay_ms=st.integers(-1, 50),
        connection=st.sampled_from("xy"),
    )
    def watch(self, needed: dict[str, int], delay_ms: int, connection: str) -> None:
        operation = Waiting(self.values, needed, connection)
        deadline_ms = self.timer.monotonic_ms() + delay_ms
        is_over = self.purgatory.watch(operation, list(needed), deadline_ms)
        if all(self.values.get(key, 0) >= value for key, value in needed.items()):
            self.end(operation, ["complete"])
        elif delay_ms <= 0:
            self.end(operation, ["expire", "complete"])
        else:
            self.waiting[operation] = deadline_ms
        assert is_over == (operation not in self.waiting)

    @rule(key=st.sampled_from("abc"))
    def change(self, key: str) -> None:
        self.values[key] = self.values.get(key, 0) + 1
        expected = [
            operation
            for operation in self.watched()
            if key in operation.needed
            and all(self.values.get(name, 0) >= value for name, value in operation.needed.items())
        ]
        assert self.purgatory.changed(key) == len(expected)
        for operation in expected:
            self.end(operation, ["complete"])

    @rule(elapsed_ms=st.integers(0, 60))
    def time_passes(self, elapsed_ms: int) -> None:
        now_ms = self.timer.monotonic_ms() + elapsed_ms
        self.timer.advance(now_ms)
        for operation, deadline_ms in list(self.waiting.items()):
            if deadline_ms <= now_ms:
                self.end(operation, ["expire", "complete"])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(list(self.waiting)))
        assert self.purgatory.cancel(operation)
        self.end(operation, [])

    @invariant()
    def every_operation_ended_as_the_model_says_and_left_nothing(self) -> None:
        assert all(operation.events == events for operation, events in self.over)
        assert all(not operation.events for operation in self.waiting)
        assert len(self.purgatory) == len(self.timer) == len(self.waiting)
        watched = self.watched()
        assert all(set(operation.watched_keys) == set(operation.needed) for operation in watched)
        assert all(len(operation.needed) > 1 for operation in self.waiting if operation not in watched)
        counts = [len(operation.needed) for operation in watched]
        assert self.purgatory.watched_count == sum(counts)
        assert sum(count for count in counts if count > 1) <= MAX_WATCHED
        assert self.purgatory.key_count == len({key for operation in watched for key in operation.needed})


TestPurgatoryAgainstModel = PurgatoryAgainstModel.TestCase
TestPurgatoryAgainstModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
