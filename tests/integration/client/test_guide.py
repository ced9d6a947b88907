"""The examples of docs/python-client.md run, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python-client.md").read_text(), re.DOTALL)
OUTPUT = re.findall(r"```\n(loss: .*?)```", (ROOT / "docs" / "python-client.md").read_text(), re.DOTALL)
TIMEOUT_S = 120


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(own_broker: BrokerProcess, number: int) -> None:
    if "to_arrow" in EXAMPLES[number]:
        pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]],
        env={**os.environ, "BOOTSTRAP": own_broker.bootstrap, "PYTHONPATH": str(ROOT / "services")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "async def loss()" in EXAMPLES[number]:
        assert done.stdout == OUTPUT[0]
    else:
        assert done.stdout
