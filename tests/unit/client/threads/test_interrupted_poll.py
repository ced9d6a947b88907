"""A thread that waits for a poll and is interrupted, as by Ctrl-C, does not get the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from tidelog.client.core.consuming.records import ConsumerRecord
from tidelog.client.threads.consumer import Consumer, ShareConsumer
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.model.topics import TopicPartition

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
RECORDS = [ConsumerRecord[Any, Any](PLACES[at % 2], 10 + at, 0, None, b"v", ()) for at in range(6)]
WORK_S = 0.05


async def found() -> list[Any]:
    return RECORDS


async def found_late() -> list[Any]:
    """Finds records after the interruption, in one step, so that no cancellation gets between."""
    time.sleep(WORK_S)  # noqa: ASYNC251 - it stands for work of the event loop
    return RECORDS


async def nothing() -> list[Any]:
    await asyncio.sleep(3600)
    return RECORDS


class Polled:
    """A consumer on asyncio. `returned` are the records that it got back."""

    def __init__(self, poll: Callable[[], Coroutine[Any, Any, list[Any]]]) -> None:
        self.work = poll
        self.returned: list[Any] = []

    async def start(self) -> None: ...

    async def close(self, *, commits: bool) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def poll(self, timeout_s: float, *, max_records: int | None) -> list[Any]:
        return await self.work()

    def read_again(self, offsets: dict[TopicPartition, int]) -> None:
        self.returned += [offsets]

    def release(self, records: list[Any]) -> None:
        self.returned += [records]


def interrupt_after(wait_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts the next wait for a result."""
    wait = LoopThread._run_callbacks

    def interrupted(self: LoopThread, done: Future[Any]) -> Any:
        monkeypatch.setattr(LoopThread, "_run_callbacks", wait)
        time.sleep(wait_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopThread, "_run_callbacks", interrupted)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    ("poll", "wait_s", "is_found"),
    [(found, WORK_S, True), (found_late, WORK_S / 2, True), (nothing, 0, False)],
)
def test_what_an_interrupted_poll_found_goes_back(
    monkeypatch: pytest.MonkeyPatch,
    poll: Callable[[], Coroutine[Any, Any, list[Any]]],
    wait_s: float,
    is_found: bool,
    is_shared: bool,
) -> None:
    polled = Polled(poll)
    consumer: Any = (
        ShareConsumer[bytes, bytes]("h:1", {"group.id": "g"}) if is_shared else Consumer[bytes, bytes]("h:1")
    )
    consumer._make = lambda: polled
    with consumer:
        interrupt_after(wait_s, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()
    expected = RECORDS if is_shared else {PLACES[0]: 10, PLACES[1]: 11}
    assert polled.returned == ([expected] if is_found else [])
