"""Pauses between attempts, tasks that nobody awaits, and the work that a budget lets through in each turn."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.pauses import NO_BACKOFF
from tidelog.kernel.instants import Backoff
from tidelog.kernel.slices import TaskSet, TurnBudget

UNITS = 10


def test_the_pause_grows_up_to_its_bound() -> None:
    backoff = Backoff(100, 2_000, 3.0)
    assert [backoff.delay_ms(count) for count in (1, 2, 3, 4, 5)] == [100, 300, 900, 2_000, 2_000]
    assert NO_BACKOFF.delay_ms(3) == 0


def test_the_pause_doubles_by_default() -> None:
    assert [Backoff(50, 1_000).delay_ms(count) for count in range(7)] == [50, 50, 100, 200, 400, 800, 1_000]


def test_jitter_makes_a_pause_up_to_a_fifth_shorter_or_longer() -> None:
    assert [Backoff(100, 1_000, jitter=lambda at=at: at).delay_ms(2) for at in (0, 0.5, 1)] == [160, 200, 240]


@given(st.integers(0, 86_400_000), st.floats(1, 100), st.integers(1, 86_400_000), st.integers(0, 32_767))
def test_the_pause_is_bounded_and_never_shrinks(first: int, multiplier: float, most: int, count: int) -> None:
    backoff = Backoff(first, most, multiplier)
    delay_ms = backoff.delay_ms(count)
    assert min(first, most) <= delay_ms <= most or delay_ms == first == 0
    assert backoff.delay_ms(count + 1) >= delay_ms


def test_a_task_is_kept_until_it_ends() -> None:
    async def body() -> None:
        tasks: TaskSet[int] = TaskSet()
        gate = asyncio.Event()

        async def work() -> int:
            await gate.wait()
            return 1

        task = tasks.start(work(), name="work")
        assert task.get_name() == "work"
        assert tasks == {task}
        gate.set()
        assert await task == 1
        await asyncio.sleep(0)
        assert not tasks

    asyncio.run(body())


def test_all_tasks_are_cancelled() -> None:
    async def body() -> None:
        tasks: TaskSet[None] = TaskSet()
        begun = [tasks.start(asyncio.Event().wait()) for _ in range(3)]  # type: ignore[arg-type]
        tasks.cancel()
        await asyncio.wait(begun)
        assert all(task.cancelled() for task in begun)
        assert not tasks

    asyncio.run(body())


async def _turns_of(budget: TurnBudget, costs: list[int]) -> list[int]:
    """Returns the turn in which each of many tasks began to work."""
    turn, begun = 0, list[tuple[int, int]]()

    async def work(number: int, units: int) -> None:
        await budget.take(units)
        begun.append((number, turn))

    tasks = [asyncio.ensure_future(work(number, units)) for number, units in enumerate(costs)]
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert [number for number, _ in begun] == list(range(len(costs))), "they begin in order"
    return [at for _, at in begun]


@given(st.lists(st.integers(1, 3 * UNITS), max_size=100))
def test_no_turn_does_more_than_its_budget(costs: list[int]) -> None:
    turns = asyncio.run(_turns_of(TurnBudget(UNITS), costs))
    spent: Counter[int] = Counter()
    for at, units in zip(turns, costs, strict=True):
        assert spent[at] < UNITS, "only the last piece may exceed the budget"
        spent[at] += units


def test_work_within_the_budget_begins_at_once() -> None:
    async def run() -> list[list[int]]:
        budget = TurnBudget(UNITS)
        return [await _turns_of(budget, [1] * UNITS) for _ in range(3)]

    assert asyncio.run(run()) == [[1] * UNITS] * 3


def test_a_task_that_is_cancelled_costs_nothing() -> None:
    async def run() -> None:
        budget = TurnBudget(1)
        await budget.take()
        cancelled = asyncio.ensure_future(budget.take(1_000))
        after = asyncio.ensure_future(budget.take())
        await asyncio.sleep(0)
        cancelled.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert after.done()

    asyncio.run(run())


def test_a_budget_that_nobody_uses_does_nothing() -> None:
    async def run() -> None:
        budget = TurnBudget(UNITS)
        await budget.take()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not budget._is_renewed_soon

    asyncio.run(run())
