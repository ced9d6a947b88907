"""All machines lose their power at once, several times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SEEDS = 5
TIMEOUT_S = 250


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    return subprocess.run(
        [sys.executable, "-m", "sim.power_loss", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_flushed_records_survive() -> None:
    """With flush.messages=1, no acknowledged record is lost, although all replicas lose unflushed data.

    Fresh seeds can fail: seed 2785353923 loses two records, for a reason that is not known yet
    (docs/correctness.md).
    """
    finished = run("--seeds", str(SEEDS), "--first-seed", "1")
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_simulator_notices_the_loss_of_unflushed_records() -> None:
    """By default, acknowledged records are in page caches only (docs/limits.md), so this power failure loses
    some. A simulator that does not notice it proves nothing above.
    """
    finished = run("--seeds", "3", "--unflushed")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert "acknowledged records survive" in finished.stdout
