"""Runs many seeds on all processors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Final

from sim.planted import PLANTED
from sim.world import Outcome, simulate

SEEDS_A_WORKER: Final = 50
"""The number of seeds after which a worker process is replaced, which bounds memory."""


def _simulate(task: tuple[int, str | None]) -> Outcome:
    seed, planted = task
    return simulate(seed, None if planted is None else PLANTED[planted])


def outcomes(first_seed: int, seeds: int, planted: str | None, processes: int) -> Iterator[Outcome]:
    """Yields outcomes as they arrive, in no order."""
    tasks = [(seed, planted) for seed in range(first_seed, first_seed + seeds)]
    if processes == 1 or seeds == 1:
        yield from map(_simulate, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=SEEDS_A_WORKER) as pool:
        yield from pool.imap_unordered(_simulate, tasks)
