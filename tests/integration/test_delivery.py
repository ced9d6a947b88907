"""The demo of delivery guarantees (tests/demo/delivery.py): each mode keeps its guarantee
while workers die.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess

pytestmark = pytest.mark.integration

DEMO = Path(__file__).resolve().parents[1] / "demo" / "delivery.py"


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("at-most-once", marks=pytest.mark.slow),
        pytest.param("at-least-once", marks=pytest.mark.slow),
        "exactly-once",
    ],
)
def test_mode(start_broker: Callable[..., BrokerProcess], mode: str) -> None:
    broker = start_broker({"group.initial.rebalance.delay.ms": "0"})
    command = [sys.executable, str(DEMO), "--bootstrap", broker.bootstrap, "--mode", mode]
    done = subprocess.run(
        [*command, "--records", "900", "--kills", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
