"""Decides whose copy of dead letters may keep batches in memory next.

A write to a dead letter topic that does not answer keeps its batches until its timeout. So topics whose last
write succeeded have turns of their own, and each other topic has one of the remaining turns at a time. Topics
that hang, however many, hold up the answering ones at most once, until their first timeouts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

MAX_COPIES: Final = 48
"""The most copies to answering topics that keep batches in memory, about 1 MiB each."""
MAX_COPIES_OF_OTHERS: Final = 16
"""The most copies to topics that are not known to answer, each to another topic."""
MAX_COPIES_OF_TOPIC: Final = 4
"""The most copies to one answering topic. It is one copy while half of the turns or more are taken, so that
a few topics that begin to hang leave room for many.
"""
MAX_ANSWERING_TOPICS: Final = 1_000
"""The most topics that are known to answer. A further topic replaces the one that was added first."""


class CopyTurns:
    """The turns of all copies of a broker. Topics that wait get them one after the other."""

    def __init__(self) -> None:
        self._answering: dict[str, None] = {}
        self._held: Counter[str] = Counter()
        """The turns by topic, of topics that answered when they got the turn."""
        self._held_by_others: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[Counter[str]]]] = {}
        """The copies that wait, by topic. A topic that got a turn is the last one again."""

    @asynccontextmanager
    async def turn(self, topic: str) -> AsyncIterator[None]:
        """Waits for the turn of a copy to a topic, and ends the turn after the block."""
        held = self._take(topic)
        if held is None:
            got: asyncio.Future[Counter[str]] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(topic, deque()).append(got)
            try:
                held = await got
            except asyncio.CancelledError:
                if got.done() and not got.cancelled():  # it was given a turn and cancelled at once
                    self._end(topic, got.result())
                raise
        try:
            yield
        finally:
            self._end(topic, held)

    def answered(self, topic: str) -> None:
        """Counts a topic among the answering ones, because a write to it succeeded."""
        if topic in self._answering:
            return
        if len(self._answering) >= MAX_ANSWERING_TOPICS:
            del self._answering[next(iter(self._answering))]
        self._answering[topic] = None
        self._admit()

    def failed(self, topic: str) -> None:
        """Counts a topic among the others, because a write to it failed."""
        self._answering.pop(topic, None)

    def _take(self, topic: str) -> Counter[str] | None:
        """Takes a turn for a topic, if it may have one. Returns the count that the turn belongs to."""
        if topic in self._answering:
            held, all_held = self._held, self._held.total()
            share = MAX_COPIES_OF_TOPIC if 2 * all_held < MAX_COPIES else 1
            is_free = all_held < MAX_COPIES and held[topic] < share
        else:
            held = self._held_by_others
            is_free = held.total() < MAX_COPIES_OF_OTHERS and held[topic] == 0
        if not is_free:
            return None
        held[topic] += 1
        return held

    def _end(self, topic: str, held: Counter[str]) -> None:
        held[topic] -= 1
        if not held[topic]:
            del held[topic]
        self._admit()

    def _admit(self) -> None:
        """Gives turns to the topics that wait and may have one."""
        for topic in tuple(self._waiting):
            waiting = self._waiting[topic]
            while waiting and waiting[0].done():  # cancelled
                waiting.popleft()
            if waiting and (held := self._take(topic)) is not None:
                waiting.popleft().set_result(held)
                del self._waiting[topic]
                self._waiting[topic] = waiting
            if not waiting:
                del self._waiting[topic]
