"""Chaos Toolkit's experiments on the release, one after the other, under a load of every kind of client.

The suite leaves out the full volume, which needs special volumes (`make chaos`), and upgrades, which have
their own suite. The report is in build/chaos-e2e.
"""

from __future__ import annotations

import os

from chaoslab.__main__ import OTHERS, schedule
from chaoslab.report import line
from chaoslab.run import ROOT, RunPlan, run
from e2e.outcome import Outcome
from e2e.release import Release

KILLS = int(os.environ.get("TIDELOG_CHAOS_KILLS", "30"))
LEFT_OUT = ("full-volume", "upgrade")


def test_thirty_kills_and_no_anomaly(release: Release, outcome: Outcome) -> None:
    others = tuple(name for name in OTHERS if name not in LEFT_OUT)
    experiments = schedule(KILLS, others)
    plan = RunPlan(
        release.kubectl.namespace, release.name, release.bootstrap, experiments, title="Chaos (make e2e)"
    )
    report = run(plan, ROOT / "build/chaos-e2e")
    print(line(report))
    outcome.add(
        kills=report["kills"],
        anomalies=report["anomaly_count"] + len(report["complaints"]),
        longest_gap_s=report["longest_gap_s"],
    )
    for kind, row in report["by_kind"].items():
        for name in ("next_write_s_max", "whole_isr_s_max"):
            if row[name] is not None:
                outcome.figures[f"chaos, {kind}: {name.removesuffix('_s_max')}, worst, s"] = row[name]
    assert report["anomalies"] == []
    assert report["complaints"] == []
    assert report["unread"] == []
    assert [e for e in report["experiments"] if e["status"] != "completed" or e["failures"]] == []
    assert report["kills"] >= KILLS
