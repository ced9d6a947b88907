"""Readings that viewers share, one in an interval and none if nobody looks, and samples meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tidelog.client.errors import UnreachableError
from tidelog.console.cluster_access import MAX_SUBJECTS, HealthSampler, SharedReadings
from tidelog.kernel.clock import ManualClock
from tidelog.model.errors import ErrorCode, KafkaError

TIMEOUT_S = 30.0


async def run_later(call: Callable[[], Any]) -> Any:
    """Runs a call after other tasks had their turn, as a thread would."""
    await asyncio.sleep(0)
    return call()


def shared(clock: ManualClock) -> SharedReadings:
    return SharedReadings(5_000, run_later, clock.wall_ms, clock.monotonic_ms)


def test_viewers_at_the_same_time_share_one_reading() -> None:
    readings = shared(ManualClock())
    calls: list[int] = []

    def read() -> int:
        calls.append(1)
        return len(calls)

    async def look() -> list[int | None]:
        found = await asyncio.gather(*(readings.get("overview", read) for _ in range(20)))
        return [each.value for each in found]

    assert asyncio.run(look()) == [1] * 20
    assert len(calls) == 1


def test_a_reading_is_repeated_only_after_the_interval() -> None:
    clock = ManualClock()
    readings = shared(clock)
    values = iter(range(10))

    async def look() -> int | None:
        return (await readings.get("overview", lambda: next(values))).value

    async def play() -> list[int | None]:
        seen = [await look()]
        clock.advance(4_999)
        seen.append(await look())
        clock.advance(60_000 - 4_999)  # nobody looked for a minute, and nothing was read meanwhile
        seen.append(await look())
        return seen

    assert asyncio.run(play()) == [0, 0, 1]


def test_an_error_keeps_the_last_value_and_is_not_repeated_at_once() -> None:
    clock = ManualClock()
    started_ms = clock.wall_ms()
    readings = shared(clock)
    calls: list[int] = []

    def read() -> str:
        calls.append(1)
        if len(calls) > 1:
            raise UnreachableError("no connection")
        return "well"

    async def play() -> None:
        await readings.get("overview", read)
        clock.advance(5_000)
        for _ in range(3):
            reading = await readings.get("overview", read)
            assert reading.value == "well"
            assert reading.read_at_ms == started_ms
            assert str(reading.error) == "no connection"

    asyncio.run(play())
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (ErrorCode.GROUP_ID_NOT_FOUND, None),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "value"),
    ],
)
def test_what_was_deleted_or_is_denied_now_is_not_shown_any_more(code: ErrorCode, kept: str | None) -> None:
    clock = ManualClock()
    readings = shared(clock)
    errors = iter([None, KafkaError(code, "it failed")])

    def read() -> str:
        if (error := next(errors)) is not None:
            raise error
        return "value"

    async def play() -> str | None:
        await readings.get("topic", read)
        clock.advance(5_000)
        return (await readings.get("topic", read)).value

    assert asyncio.run(play()) == kept


def test_the_number_of_kept_readings_is_bounded() -> None:
    readings = shared(ManualClock())

    async def play() -> None:
        for number in range(MAX_SUBJECTS + 50):
            await readings.get(number, lambda: 0)
        assert len(readings) == MAX_SUBJECTS

    asyncio.run(play())


def test_it_samples_again_after_a_failure_and_ends() -> None:
    intervals: list[int] = []
    is_done = threading.Event()

    def sample(interval_ms: int) -> None:
        intervals.append(interval_ms)
        if len(intervals) == 3:
            is_done.set()
        raise UnreachableError("no broker answers")

    with ThreadPoolExecutor(1) as worker:
        sampler = HealthSampler(sample, worker, 1)
        sampler.start()
        assert is_done.wait(TIMEOUT_S)
        sampler.close()
        count = len(intervals)
        assert not any(thread.name == "console-health" for thread in threading.enumerate())
    assert intervals == [1] * count


def test_closing_does_not_wait_for_the_interval() -> None:
    began = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        sampler = HealthSampler(lambda interval_ms: began.set(), worker, 3_600_000)
        sampler.start()
        assert began.wait(TIMEOUT_S)
        sampler.close()


def test_one_that_never_started_closes() -> None:
    with ThreadPoolExecutor(1) as worker:
        HealthSampler(lambda interval_ms: None, worker).close()
