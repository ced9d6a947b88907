"""The dashboards' lists of the worst partitions, with the answers of promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kuberneteslab.chart_files import NAMESPACE, RELEASE, queries, with_variables
from kuberneteslab.prometheus import is_installed

SEL = f'namespace="{NAMESPACE}",release="{RELEASE}"'
METRICS = ("replicascount", "insyncreplicascount", "underreplicated", "underminisr", "atminisr")
HEALTHY, MISSING = (3, 3, 0, 0, 0), (3, 2, 1, 0, 0)
pytestmark = pytest.mark.skipif(not is_installed(), reason="no promtool: apt-get install prometheus")


def _series() -> list[dict[str, str]]:
    """Returns more sound partitions of an internal topic than a list has lines, one of it that lacks a
    replica, and two of a user.
    """
    partitions = {("__consumer_offsets", index): HEALTHY for index in range(50)}
    partitions |= {("__consumer_offsets", 50): MISSING, ("flights", 0): HEALTHY, ("flights", 1): MISSING}
    return [
        {
            "series": f'kafka_cluster_partition_{name}{{{SEL},topic="{topic}",partition="{index}"}}',
            "values": f"{value}+0x10",
        }
        for (topic, index), values in partitions.items()
        for name, value in zip(METRICS, values, strict=True)
    ]


@pytest.mark.parametrize(
    ("panel", "legend", "sound", "missing"),
    [
        ("ISR by partition", "{{topic}}-{{partition}}", 0, 1),
        ("Most under-replicated partitions", "Replicas missing", 0, 1),
        ("Most under-replicated partitions", "In sync", 3, 2),
    ],
)
def test_internal_topics_are_listed_only_if_they_lack_replicas(
    panel: str, legend: str, sound: int, missing: int, tmp_path: Path
) -> None:
    (query,) = [q for q in queries() if q.dashboard == "cluster" and (q.panel, q.legend) == (panel, legend)]
    expression = with_variables(query.expression, rate_interval="1m", range_="5m").replace("@ end()", "")
    places = {("flights", 0): sound, ("flights", 1): missing, ("__consumer_offsets", 50): missing}
    expected: list[dict[str, Any]] = [
        {"labels": f'{{topic="{topic}",partition="{index}"}}', "value": value}
        for (topic, index), value in places.items()
    ]
    asked = {"expr": expression, "eval_time": "8m", "exp_samples": expected}
    tests = [{"interval": "1m", "input_series": _series(), "promql_expr_test": [asked]}]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    command = ["promtool", "test", "rules", tmp_path / "test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
