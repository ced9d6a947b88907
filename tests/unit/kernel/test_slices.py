"""Long work yields to the event loop after each slice, and short work ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise

from tidelog.kernel.slices import SLICE_MS, STEPS_BETWEEN_READINGS, in_slices, run_in_slices
from tidelog.kernel.steps import all_at_once

STEPS_IN_A_SLICE = (SLICE_MS + 1) * STEPS_BETWEEN_READINGS


class Seconds:
    """A clock of which each reading takes a millisecond."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> float:
        self.now_ms += 1
        return self.now_ms / 1000


def work(steps: int, done: list[int]) -> Generator[None, None, str]:
    for number in range(steps):
        done.append(number)
        yield
    return "result"


def test_short_work_ends_at_once() -> None:
    assert in_slices(work(3, []), Seconds()) == "result"


def test_long_work_lets_others_run_between_slices() -> None:
    async def run() -> list[int]:
        done: list[int] = []
        seen: list[int] = []
        answer = in_slices(work(500, done), Seconds())
        assert asyncio.iscoroutine(answer)
        task = asyncio.ensure_future(answer)
        while not task.done():
            seen.append(len(done))
            await asyncio.sleep(0)
        assert task.result() == "result"
        assert done == list(range(500))
        return seen

    seen = asyncio.run(run())
    assert all(later - earlier <= STEPS_IN_A_SLICE for earlier, later in pairwise(seen))


def test_a_request_of_several_turns_meets_few_slices() -> None:
    """A commit of an offset takes five turns: it goes from its connection to the coordinator of its group and
    back. It must not wait for a slice in each of them.
    """

    async def run() -> None:
        done: list[int] = []
        task = asyncio.ensure_future(run_in_slices(work(5_000, done), Seconds()))
        await asyncio.sleep(0)
        while not task.done():
            before = len(done)
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(done) - before <= STEPS_IN_A_SLICE

    asyncio.run(run())


def test_only_one_long_work_runs_at_a_time() -> None:
    async def run() -> None:
        first: list[int] = []
        second: list[int] = []
        tasks = [
            asyncio.ensure_future(run_in_slices(work(1000, done), Seconds())) for done in (first, second)
        ]
        await asyncio.sleep(0)
        while not tasks[0].done():
            await asyncio.sleep(0)
            assert len(first) == 1000 or len(second) <= STEPS_IN_A_SLICE
        assert await asyncio.gather(*tasks) == ["result", "result"]

    asyncio.run(run())


def test_in_a_thread_all_work_is_done_at_once() -> None:
    assert all_at_once(work(500, [])) == "result"


def test_an_error_ends_the_work() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    async def run() -> None:
        try:
            await run_in_slices(failing(), Seconds())
        except ValueError:
            return
        raise AssertionError("the error is lost")

    asyncio.run(run())
