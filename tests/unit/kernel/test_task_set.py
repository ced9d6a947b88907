"""Tasks that nobody awaits."""

from __future__ import annotations

import asyncio

from tidelog.kernel.slices import TaskSet


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
