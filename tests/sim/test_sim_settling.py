"""A share group that makes progress gets time for its records. One that stands still or is too slow fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sim.share_members import ROUND_S, Backlog
from sim.world import SETTLE_S, World
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("events", 0)
OTHER = TopicPartition("events", 1)
RECORDS = 2_000
SOON_S = 1.0


class EmptyWorld(World):
    """A world in which nothing but the wait happens."""

    def describe(self) -> str:
        return ""


def settled_after(
    finish_record_s: float, *, stands_still_at: int = RECORDS, records_a_fetch: int = 1
) -> tuple[float, str | None]:
    """Waits for a share group that needs `finish_record_s` for each record. Returns the time at which it has
    finished or the wait has failed, and the failure.
    """
    world = EmptyWorld(1)
    loop, backlog = world.loop, Backlog(records_a_fetch)

    def start_offset() -> int:
        return min(int(loop.now / finish_record_s), stands_still_at)

    def progress_s() -> float:
        backlog.reached(PLACE, start_offset())
        return backlog.due_s

    def holds() -> bool:
        return start_offset() >= RECORDS

    waiting = loop.spawn_outside(world.until(holds, SETTLE_S, "the group settles", progress_s))
    loop.run_until(lambda: waiting.done() or world.invariants.violation is not None)
    if waiting.done():
        waiting.result()
    return loop.now, world.invariants.violation


def test_a_long_backlog_gets_its_time() -> None:
    settled_s, failure = settled_after(ROUND_S / 2)
    assert failure is None
    assert settled_s > 2 * SETTLE_S


@pytest.mark.parametrize("stands_still_at", [0, 1, RECORDS // 2, RECORDS - 1])
def test_a_group_that_stands_still_fails(stands_still_at: int) -> None:
    failed_s, failure = settled_after(ROUND_S / 2, stands_still_at=stands_still_at)
    assert failure is not None
    assert "the group settles in time" in failure
    assert failed_s <= SETTLE_S + stands_still_at * ROUND_S + SOON_S


@pytest.mark.parametrize("records_a_fetch", [1, 5])
def test_a_group_that_is_too_slow_fails(records_a_fetch: int) -> None:
    _, failure = settled_after(3 * ROUND_S / records_a_fetch, records_a_fetch=records_a_fetch)
    assert failure is not None


def reached(*starts: tuple[TopicPartition, int]) -> Callable[[], int]:
    backlog = Backlog(1)
    for place, start_offset in starts:
        backlog.reached(place, start_offset)
    return lambda: backlog.finished


@pytest.mark.parametrize(
    ("starts", "finished"),
    [
        ([], 0),
        ([(PLACE, 500)], 0),
        ([(PLACE, 500), (PLACE, 501), (OTHER, 20), (OTHER, 24)], 5),
        ([(PLACE, 500), (PLACE, 510), (PLACE, 500), (PLACE, 510)], 10),
        ([(PLACE, 500), (PLACE, 0)], 0),
    ],
)
def test_only_offsets_that_no_leader_had_passed_are_progress(
    starts: list[tuple[TopicPartition, int]], finished: int
) -> None:
    assert reached(*starts)() == finished
