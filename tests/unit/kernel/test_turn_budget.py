"""The work that a budget lets through in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidelog.kernel.slices import TurnBudget

UNITS = 10


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
