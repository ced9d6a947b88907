"""Every panel's PromQL returns data from a real Prometheus that scrapes a real cluster under load."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from kuberneteslab.chart_files import (
    BOARDS,
    CHART,
    DASHBOARDS,
    DEV_DASHBOARD,
    ROOT,
    Query,
    dashboard,
    metric_of,
    panels,
    queries,
    rules,
    selectors,
    table_of_metrics,
    with_variables,
)
from kuberneteslab.prometheus import Prometheus, Series
from kuberneteslab.watched_cluster import WatchedCluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SCRAPES, SCRAPES_TIMEOUT_S = 3, 90.0
RATE_INTERVAL, RANGE = "30s", "30s"
DATA_TIMEOUT_S = 60.0
FOREIGN = ("etcd_", "kube_", "kubelet_", "container_", "node_")
# Series that a healthy cluster may lack, because nothing failed. promtool tests their rules.
ONLY_AFTER_A_FAULT = {"kube_job_failed", "tidelog_log_cleaner_runs_total"}
# Series of a cluster with ACLs, and of processes with a memory limit.
NOT_IN_THE_LAB = {
    "tidelog_container_memory_limit_bytes",
    "tidelog_container_memory_used_bytes",
    "tidelog_denied_accesses_total",
}


def _asked(query: Query) -> str:
    return with_variables(query.expression, rate_interval=RATE_INTERVAL, range_=RANGE)


def _has_numbers(series: Series) -> bool:
    return any(not math.isnan(float(s["value"][1])) for s in series)


def _expected() -> list[Query]:
    """Returns the queries that have data in a healthy cluster of plain processes."""
    return [
        query
        for query in queries()
        if NOT_IN_THE_LAB.isdisjoint(metric_of(selector) for selector in selectors(_asked(query)))
    ]


@pytest.fixture(scope="module")
def prometheus(watched: WatchedCluster) -> Prometheus:
    watched.prometheus.await_scrapes(SCRAPES, SCRAPES_TIMEOUT_S)
    return watched.prometheus


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_has_data(path: Any, prometheus: Prometheus) -> None:
    wanted = [query for query in _expected() if query.dashboard == path.stem]
    assert wanted
    without = list(wanted)

    def all_have_data() -> bool:
        without[:] = [query for query in without if not _has_numbers(prometheus.now(_asked(query)))]
        return not without

    try:
        prometheus.await_true(all_have_data, "data in all panels", DATA_TIMEOUT_S)
    except TimeoutError:
        lines = [f"{query}: {_asked(query)}" for query in without]
        pytest.fail(f"no data in {len(without)} of {len(wanted)} queries:\n" + "\n".join(lines))


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_legends_use_labels_of_the_results(path: Any, prometheus: Prometheus) -> None:
    for query in (query for query in _expected() if query.dashboard == path.stem):
        wanted = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        series = prometheus.now(_asked(query))
        assert series, query
        assert wanted <= set(series[0]["metric"]), (str(query), series[0]["metric"])


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_variables_have_values(path: Any, prometheus: Prometheus) -> None:
    for variable in dashboard(path)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found is not None, variable["definition"]
        metric = with_variables(found[1], rate_interval=RATE_INTERVAL, range_=RANGE)
        assert prometheus.label_values(metric, found[2]), variable["definition"]


def test_rules_run_on_existing_series(prometheus: Prometheus) -> None:
    groups = prometheus.ask("rules")["groups"]
    evaluated = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(evaluated) == {rule.name for rule in rules()}
    assert {name: rule["lastError"] for name, rule in evaluated.items() if rule["health"] == "err"} == {}
    missing = {
        f"{rule.name}: {selector}"
        for rule in rules()
        for selector in selectors(rule.expression)
        if metric_of(selector) not in ONLY_AFTER_A_FAULT | NOT_IN_THE_LAB and not prometheus.now(selector)
    }
    assert missing == set()


def test_a_healthy_cluster_raises_no_critical_alert(prometheus: Prometheus) -> None:
    alerts = prometheus.ask("alerts")["alerts"]
    raised = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
    assert [labels for labels in raised if labels["severity"] == "critical"] == []


def test_the_traffic_has_no_unexpected_errors(watched: WatchedCluster, prometheus: Prometheus) -> None:
    assert watched.traffic.failures == []


def test_rules_detect_a_killed_broker(watched: WatchedCluster, prometheus: Prometheus) -> None:
    """Kills a broker, so it must be the last test that uses the cluster."""
    watched.cluster.kill("broker-3")
    expected = {
        "TidelogBrokerDown",
        "TidelogBrokerGone",
        "TidelogBrokersMissing",
        "TidelogUnderReplicatedPartitions",
    }

    def all_are_raised() -> bool:
        return expected <= {a["labels"]["alertname"] for a in prometheus.ask("alerts")["alerts"]}

    prometheus.await_true(all_are_raised, f"{expected} pending or firing", DATA_TIMEOUT_S)


# -- only the files


def test_dashboards_equal_the_generators_output() -> None:
    command = [sys.executable, str(ROOT / "tools" / "dashboards" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_panels_use_documented_metrics() -> None:
    known = table_of_metrics()
    asked = {metric_of(selector) for query in queries() for selector in selectors(_asked(query))}
    assert len(asked) > 100
    assert {name for name in asked if name not in known and not name.startswith(FOREIGN)} == set()


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_show_only_the_chosen_release(path: Any) -> None:
    for query in (query for query in queries() if query.dashboard == path.stem):
        for selector in selectors(query.expression):
            if path == DEV_DASHBOARD:
                assert "$instance" in selector, (str(query), selector)
            elif not selector.startswith("node_"):
                assert "$namespace" in selector, (str(query), selector)
                assert "$release" in selector, (str(query), selector)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_layout(path: Any) -> None:
    found = dashboard(path)
    assert len(json.dumps(found)) < 200_000
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(path):
        assert panel["description"], panel["title"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_tables_have_units_and_are_sorted(path: Any) -> None:
    for panel in (panel for panel in panels(path) if panel["type"] == "table"):
        headings = [target["legendFormat"] for target in panel["targets"]]
        overrides = {
            override["matcher"]["options"]: {entry["id"]: entry["value"] for entry in override["properties"]}
            for override in panel["fieldConfig"]["overrides"]
        }
        assert list(overrides) == headings, panel["title"]
        assert all(found["unit"] for found in overrides.values()), panel["title"]
        assert panel["options"]["sortBy"] == [{"displayName": headings[0], "desc": True}], panel["title"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_legends_show_the_last_and_the_greatest_value(path: Any) -> None:
    for panel in (panel for panel in panels(path) if panel["type"] == "timeseries"):
        assert panel["options"]["legend"]["calcs"] == ["lastNotNull", "max"], panel["title"]


def test_missing_replicas_are_positive_and_the_worst_partitions_come_first() -> None:
    """The table once subtracted the other way round, and showed the partitions with -1 at its end."""
    (panel,) = [
        panel
        for panel in panels(CHART / "dashboards" / "cluster.json")
        if panel["title"] == "Most under-replicated partitions"
    ]
    missing = panel["targets"][0]["expr"]
    assert missing.startswith("topk(20, ")
    assert 0 <= missing.index("_replicascount") < missing.index(" - ") < missing.index("_insyncreplicascount")
    thresholds = panel["fieldConfig"]["overrides"][0]["properties"][1]["value"]["steps"]
    assert [step["value"] for step in thresholds] == [None, 1, 2]


def test_the_isr_timeline_names_every_state_of_a_partition() -> None:
    """The expression adds 1 for a missing replica, 1 more at min ISR, and 3 under it."""
    (panel,) = [
        panel
        for panel in panels(CHART / "dashboards" / "cluster.json")
        if panel["type"] == "state-timeline" and panel["title"] == "ISR by partition"
    ]
    states = {
        under_replicated * (1 + at_min) + 3 * under_min
        for under_replicated in (0, 1)
        for at_min, under_min in ((0, 0), (1, 0), (0, 1))
    }
    named = {
        int(value) for mapping in panel["fieldConfig"]["defaults"]["mappings"] for value in mapping["options"]
    }
    assert states <= named
    assert "$topic" in panel["targets"][0]["expr"]


def test_there_are_seven_dashboards_with_unique_uids() -> None:
    of_the_chart = ("cluster", "lag", "broker", "groups", "share-groups", "kubernetes")
    assert {dashboard(path)["uid"] for path in DASHBOARDS} == {f"tidelog-{name}" for name in of_the_chart}
    assert dashboard(DEV_DASHBOARD)["uid"] == "tidelog-dev"
