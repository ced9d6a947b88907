"""A producer whose topic is created again: the simulator finds the faults that are planted in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from brokerlab import planted_in_client as planted
from sim import recreated_topics, seeds
from tidelog.process.build import is_compiled

FIXED_SEEDS = range(1, 4)


def test_fixed_seeds() -> None:
    assert [recreated_topics.failure(seed) for seed in FIXED_SEEDS] == [None] * len(FIXED_SEEDS)


@pytest.mark.skipif(is_compiled(), reason="the methods of compiled classes cannot be replaced")
@pytest.mark.parametrize("plant", [planted.overtaken_batches_repeated, planted.fates_in_earlier_topics_kept])
def test_a_planted_fault_is_found(plant: Callable[[], AbstractContextManager[None]]) -> None:
    with plant():
        failures = [found for seed in range(1, 31) if (found := recreated_topics.failure(seed)) is not None]
    assert any("order" in found for found in failures)


def test_a_failure_is_one_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recreated_topics, "failure", lambda seed: f"run 0 of seed {seed}: it is not in order")
    (outcome,) = seeds.outcomes([1], None, processes=1)
    assert (outcome.seed, outcome.failure) == (1, "run 0 of seed 1: it is not in order")
