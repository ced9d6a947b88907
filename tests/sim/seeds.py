"""Runs many seeds on all processors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from typing import Final

from sim import recreated_topics
from sim.planted import PLANTED
from sim.world import Outcome, plan_of, simulate

SEEDS_A_WORKER: Final = 50
"""The number of seeds after which a worker process is replaced, which bounds memory."""


def _simulate(task: tuple[int, str | None]) -> Outcome:
    seed, planted = task
    if planted is not None:
        return simulate(seed, PLANTED[planted])
    outcome = simulate(seed)
    if outcome.failure is None:
        failure = recreated_topics.failure(seed)
        if failure is not None:
            phase = "a producer's topic was created again"
            outcome = outcome._replace(failure=failure, phase=phase, last_events=[])
    return outcome


def seeds_with_applications(first_seed: int, count: int) -> list[int]:
    """Returns `count` seeds from `first_seed` on that contain applications with the Python client."""
    chosen: list[int] = []
    seed = first_seed
    while len(chosen) < count:
        if plan_of(seed).applications is not None:
            chosen.append(seed)
        seed += 1
    return chosen


def outcomes(seeds: Sequence[int], planted: str | None, processes: int) -> Iterator[Outcome]:
    """Yields outcomes as they arrive, in no order."""
    tasks = [(seed, planted) for seed in seeds]
    if processes == 1 or len(seeds) == 1:
        yield from map(_simulate, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=SEEDS_A_WORKER) as pool:
        yield from pool.imap_unordered(_simulate, tasks)
