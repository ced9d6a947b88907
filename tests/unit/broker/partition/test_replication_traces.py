"""Replication as text: each file in `traces` is a script of events, with the cluster's reaction beside each.

`clusterlab.replication_traces` lists the events. To add a scenario, write a file with the events alone, run
this test with TIDELOG_WRITE_TRACES=1, which adds the reactions, and check that they are the right ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterlab.replication_traces import played

TRACES = Path(__file__).parent / "traces"


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_cluster_reacts_as_the_trace_says(path: Path) -> None:
    found = played(path.read_text())
    if os.environ.get("TIDELOG_WRITE_TRACES"):
        path.write_text(found)
    assert found == path.read_text()


def test_a_trace_that_loses_an_acknowledged_record_fails() -> None:
    text = (TRACES / "restart_without_epochs.txt").read_text()
    without_its_last_line = text[: text.rindex("lost")]
    with pytest.raises(AssertionError, match=r"acknowledged records are lost: \['b'\]"):
        played(without_its_last_line)
