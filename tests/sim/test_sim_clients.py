"""A stopped producer is idle only when all its batches are answered, and it sends none afterwards."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sim.clients import MAX_IN_FLIGHT, SimProducer
from sim.loop import SimLoop
from tidelog.model.topics import TopicPartition

UNUSED: Any = None
MEAN_PAUSE_S = 0.01
LONG_S = 10.0


class UnansweredProducer(SimProducer):
    """A producer whose first batch is answered at once and whose later batches wait for the test."""

    def __init__(self, loop: SimLoop) -> None:
        topic_partition = TopicPartition("events", 0)
        super().__init__(
            1, topic_partition, UNUSED, UNUSED, UNUSED, random.Random(1), mean_pause_s=MEAN_PAUSE_S
        )
        self.answers: list[asyncio.Future[None]] = []
        self._loop = loop

    async def _attempt(self, batch: bytes, sequence: int, values: list[bytes]) -> bool:
        if sequence:
            answer = self._loop.create_future()
            self.answers.append(answer)
            await answer
        return True


def test_a_stopped_producer_is_idle_only_when_its_oldest_batch_is_answered() -> None:
    loop = SimLoop(random.Random(1))
    producer = UnansweredProducer(loop)
    running = loop.spawn_outside(producer.run())
    loop.call_at(LONG_S, lambda: None)
    loop.run_until(lambda: loop.now >= LONG_S)
    assert len(producer.answers) == MAX_IN_FLIGHT  # it waits for the oldest
    producer.is_stopped = True
    oldest, *newer = producer.answers
    for answer in newer:
        answer.set_result(None)
    loop.run_until(lambda: not loop.ready)
    assert not producer.is_idle
    oldest.set_result(None)
    loop.run_until(lambda: False)  # until nothing is left to do
    assert running.done()
    assert producer.is_idle
    assert producer.sent == 1 + MAX_IN_FLIGHT


def test_a_producer_that_is_stopped_during_its_pause_sends_nothing_more() -> None:
    loop = SimLoop(random.Random(1))
    producer = UnansweredProducer(loop)
    running = loop.spawn_outside(producer.run())
    loop.run_until(lambda: producer.sent == 1 and not loop.ready)
    producer.is_stopped = True
    assert producer.is_idle
    loop.run_until(lambda: False)  # until nothing is left to do
    assert running.done()
    assert producer.sent == 1
