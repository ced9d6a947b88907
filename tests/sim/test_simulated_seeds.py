"""Sixty simulated clusters; `make sim` runs more.

Each batch runs in its own process, because a seed means the same cluster everywhere only with a fixed hash
seed: the iteration order of a set of strings depends on the hash seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
BATCH = 10
FIXED_BATCHES = 5
FAST_BATCHES = 1
"""`make test` runs only these; `make test-all` runs all."""
TIMEOUT_S = 600

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim", *arguments],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def assert_seeds_hold(first_seed: int) -> None:
    finished = simulate("--seeds", str(BATCH), "--first-seed", str(first_seed), "--processes", "1")
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize(
    "first_seed",
    [
        pytest.param(batch * BATCH + 1, marks=() if batch < FAST_BATCHES else pytest.mark.slow)
        for batch in range(FIXED_BATCHES)
    ],
)
def test_fixed_seeds(first_seed: int) -> None:
    assert_seeds_hold(first_seed)


@pytest.mark.slow
def test_fresh_seeds() -> None:
    """Runs other seeds each time. If one fails, the output names it."""
    assert_seeds_hold(int.from_bytes(os.urandom(4)))


def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = (simulate("--seeds", "1", "--first-seed", "7", "--show-trace-hash") for _ in range(2))
    hashes = [line for line in first.stdout.splitlines() if line.startswith("trace")]
    assert hashes
    assert hashes == [line for line in second.stdout.splitlines() if line.startswith("trace")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        "epoch-truncation-off",
        "shrink-applied-first",
        "isr-add-without-broker-epoch",
        "fetch-without-epoch",
        "dedupe-off",
        "shard-fence-off",
        "shard-loaded-to-high-watermark",
        "client-sequence-reset",
        "client-new-numbers-for-repetitions",
        "client-commit-before-delivery",
        "client-commit-of-fetched",
        "client-share-accept-at-delivery",
        "share-confirmed-before-stored",
        "share-records-forgotten",
        "streams-tasks-given-early",
    ],
)
def test_a_planted_fault_is_found(planted: str) -> None:
    """The simulator has to find each planted fault within 500 seeds (tests/sim/README.md)."""
    finished = simulate("--seeds", "500", "--planted", planted, "--until-found")
    assert finished.returncode == 1, finished.stdout + finished.stderr
