"""A broker's periodic work leaves the event loop to others, however many replicas it has."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.hosting.housekeeping import Housekeeping
from tidelog.kernel.clock import ManualClock
from tidelog.model.topics import TopicPartition

REPLICAS = 2_000
MOST_OF_A_TURN = 1_000


class Turns:
    """The current turn of the event loop, and the replicas that were looked at in each."""

    def __init__(self) -> None:
        self.number = 0
        self.looks: Counter[int] = Counter()

    def look(self, *_: object) -> bool:
        self.looks[self.number] += 1
        return False

    async def run(self) -> None:
        while True:
            self.number += 1
            await asyncio.sleep(0)


class Storage:
    """The storage of a replica without work."""

    def __init__(self, turns: Turns) -> None:
        self.is_flush_due = turns.look
        self._turns = turns

    @property
    def has_deleted_files(self) -> bool:
        return self._turns.look()


def housekeeping(turns: Turns) -> Housekeeping:
    replicas = {
        TopicPartition("t", number): SimpleNamespace(storage=Storage(turns)) for number in range(REPLICAS)
    }
    unused: Any = None
    hosted: Any = SimpleNamespace(replicas=replicas)
    log_directory: Any = SimpleNamespace(remove_deleted_partitions=lambda now_ms: 0)
    return Housekeeping(unused, hosted, log_directory, unused, ManualClock(), unused, unused)


@pytest.mark.parametrize("duty", [Housekeeping.flush, Housekeeping.remove_deleted_files])
def test_replicas_without_work_are_looked_at_in_many_turns(
    duty: Callable[[Housekeeping], Awaitable[None]],
) -> None:
    async def run() -> None:
        turns = Turns()
        turning = asyncio.create_task(turns.run())
        await duty(housekeeping(turns))
        turning.cancel()
        assert sum(turns.looks.values()) == REPLICAS
        assert max(turns.looks.values()) <= MOST_OF_A_TURN

    asyncio.run(run())
