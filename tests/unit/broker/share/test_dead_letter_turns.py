"""The turns of copies to dead letter topics that answer, and of others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from tidelog.broker.share.dead_letter_copies import (
    MAX_ANSWERING_TOPICS,
    MAX_COPIES,
    MAX_COPIES_OF_OTHERS,
    MAX_COPIES_OF_TOPIC,
    CopyTurns,
)


class Lab:
    """Copies that keep their turns until they are told to end."""

    def __init__(self) -> None:
        self.turns = CopyTurns()
        self.holders: list[str] = []
        self.tasks: list[tuple[str, asyncio.Task[None], asyncio.Event]] = []

    async def begin(self, *topics: str) -> None:
        for topic in topics:
            end = asyncio.Event()
            self.tasks.append((topic, asyncio.create_task(self._hold(topic, end)), end))
        await self.settle()

    async def _hold(self, topic: str, end: asyncio.Event) -> None:
        async with self.turns.turn(topic):
            self.holders.append(topic)
            try:
                await end.wait()
            finally:
                self.holders.remove(topic)

    async def end(self, topic: str) -> None:
        """Ends the copies of a topic that began until now."""
        for name, _, end in self.tasks:
            if name == topic:
                end.set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)


def run(test: Coroutine[object, None, None]) -> None:
    asyncio.run(test)


def test_a_topic_that_never_answered_has_one_turn() -> None:
    async def test() -> None:
        lab = Lab()
        await lab.begin("a", "a", "b")
        assert lab.holders == ["a", "b"]
        lab.turns.answered("a")
        await lab.settle()
        assert lab.holders == ["a", "b", "a"]

    run(test())


def test_topics_that_hang_take_no_turn_of_an_answering_one() -> None:
    async def test() -> None:
        lab = Lab()
        lab.turns.answered("good")
        await lab.begin(*[f"bad-{at}" for at in range(100)] * 3)
        assert len(lab.holders) == len(set(lab.holders)) == MAX_COPIES_OF_OTHERS
        await lab.begin(*["good"] * 9)
        assert lab.holders.count("good") == MAX_COPIES_OF_TOPIC

    run(test())


def test_answering_topics_that_begin_to_hang_leave_room_for_others() -> None:
    """24 turns for 6 topics, and one for each of 20 others."""

    async def test() -> None:
        lab = Lab()
        names = [f"t-{at}" for at in range(26)] + ["good"]
        for name in names:
            lab.turns.answered(name)
        for name in names[:-1]:
            await lab.begin(*[name] * 10)
        assert len(lab.holders) == MAX_COPIES - 4
        await lab.begin("good", "good")
        assert lab.holders.count("good") == 1

    run(test())


def test_all_turns_are_bounded() -> None:
    async def test() -> None:
        lab = Lab()
        for at in range(100):
            lab.turns.answered(f"t-{at}")
        await lab.begin(*[f"t-{at}" for at in range(100)] * 2, *[f"u-{at}" for at in range(100)])
        assert len(lab.holders) == MAX_COPIES + MAX_COPIES_OF_OTHERS

    run(test())


def test_a_topic_whose_write_failed_gives_its_turns_up() -> None:
    async def test() -> None:
        lab = Lab()
        lab.turns.answered("a")
        await lab.begin("a", "a")
        lab.turns.failed("a")
        await lab.end("a")
        await lab.begin("a", "a")
        assert lab.holders == ["a"]

    run(test())


def test_topics_take_turns() -> None:
    """A topic with many copies does not delay the only copy of another."""

    async def test() -> None:
        lab = Lab()
        await lab.begin(*[f"hung-{at}" for at in range(MAX_COPIES_OF_OTHERS - 1)], "a", "a", "a", "b")
        await lab.end("hung-0")
        assert lab.holders[-2:] == ["a", "b"]

    run(test())


def test_a_copy_that_is_cancelled_leaves_its_turn_to_the_next() -> None:
    async def test() -> None:
        lab = Lab()
        await lab.begin("a", "a", "a", "a")
        lab.tasks[1][1].cancel()
        await lab.settle()
        lab.tasks[0][2].set()
        await asyncio.sleep(0)  # the third has its turn now, and does not know it yet
        lab.tasks[2][1].cancel()
        await lab.settle()
        assert lab.holders == ["a"]
        assert not lab.tasks[3][1].done()

    run(test())


def test_the_topics_that_are_known_are_bounded() -> None:
    async def test() -> None:
        lab = Lab()
        for at in range(MAX_ANSWERING_TOPICS + 1):
            lab.turns.answered(f"t-{at}")
        await lab.begin("t-0", "t-0", "t-1", "t-1")
        assert lab.holders == ["t-0", "t-1", "t-1"]

    run(test())
