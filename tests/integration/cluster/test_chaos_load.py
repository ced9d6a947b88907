"""The load of the chaos experiments with processes of this machine. While two of them are killed, all
responses to clients are sound, and the report names the duration of the impact.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.checker import judge
from chaoslab.load import ChaosLoad, ChaosPlan
from chaoslab.load_process import HISTORY_FILE, VERDICT_FILE, write_verdict
from chaoslab.report import EVENTS_FILE, is_good, write_report
from clusterlab.tidelog_cluster import TidelogCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SETTINGS = {
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
BEGINS_S = 60.0
CALM_S = 2.0


def test_a_load_of_every_kind_of_client_is_sound_under_kills(
    new_cluster: Callable[..., TidelogCluster], tmp_path: Path
) -> None:
    cluster = new_cluster(brokers=3, controllers=1, settings=SETTINGS, options=["--coordinators", "2"])
    directory = tmp_path / "report"
    directory.mkdir()
    events = []
    plan = ChaosPlan(records_per_s=100, churn_s=4.0)
    with ChaosLoad(cluster.bootstrap, plan, directory) as load:
        load.await_acknowledged(BEGINS_S)
        for name in ("broker-2", "coordinator-1"):
            killed_s = cluster.kill(name)
            events.append(
                {"action": "kill", "role": name.split("-")[0], "target": name, "at_s": killed_s, "wall_s": 0}
            )
            cluster.start(name)
            load.await_acknowledged(BEGINS_S)
            time.sleep(CALM_S)
    load.history.save(directory / HISTORY_FILE)
    verdict = judge(load.history)
    write_verdict(directory / VERDICT_FILE, verdict, load)
    (directory / EVENTS_FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    report = write_report(directory, plan.log, [], "A test")
    assert verdict.is_sound, str(verdict)
    assert is_good(report), report
    assert all(verdict.counts.values()), verdict.counts
    assert {position.group for position in load.history.positions} == {"chaos-classic", "chaos-848"}
    mixed = [read for read in load.history.reads if read.topic == plan.mixed]
    assert {read.process for read in mixed} == {"chaos-mixer-0", "chaos-mixer-1"}
    assert report["kills"] == 2
    assert set(report["by_kind"]) == {"kill broker", "kill coordinator"}
    for name in ("report.html", "timeline.png", "recoveries.png"):
        assert (directory / name).stat().st_size > 1_000
