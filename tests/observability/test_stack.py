"""The rendered umbrella chart of the observability stack, and the chart's objects for such a stack."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kuberneteslab.chart_files import CHART, DASHBOARDS, ROOT, RULES
from kuberneteslab.prometheus import is_installed

STACK = ROOT / "deploy" / "helm" / "observability"
sys.path.insert(0, str(ROOT / "tools" / "kubernetes"))
chart_check = importlib.import_module("chart_check")
sys.path.pop(0)
pytestmark = pytest.mark.skipif(chart_check.find_helm() is None, reason="no helm: make kube-tools")

Objects = list[dict[str, Any]]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the umbrella chart with the tidelog chart in place, as after `helm dependency build`."""
    target = tmp_path_factory.mktemp("stack") / "observability"
    shutil.copytree(STACK, target, ignore=shutil.ignore_patterns("charts"))
    shutil.copytree(CHART, target / "charts" / "tidelog")
    return target


@functools.cache  # helm takes more than a second
def _rendered(chart: Path, *arguments: str) -> Objects:
    text = chart_check.helm(
        "template", "blue", str(chart), "--namespace", "tide", *chart_check._VERSION, *arguments
    )
    return [found for found in yaml.safe_load_all(text) if found]


def _config_map(objects: Objects, name: str) -> dict[str, str]:
    (found,) = [o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == name]
    data: dict[str, str] = found["data"]
    return data


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--set", "prometheus.nodes=false,collector.exportTo=tempo:4317,jaeger.enabled=false"],
        [
            "--set",
            "prometheus.kubeStateMetrics=ksm:8080,prometheus.nodeExporter=node-exporter.monitoring:9100",
        ],
        ["--set", "grafana.enabled=false,prometheus.alertmanagers={alertmanager:9093}"],
    ],
    ids=["as it is", "tempo", "kubernetes", "alertmanager"],
)
def test_kubernetes_accepts_the_objects(chart: Path, arguments: list[str]) -> None:
    objects = _rendered(chart, *arguments)
    try:
        assert chart_check.faults_in(objects, set()) == []
    except chart_check.SchemasMissingError as error:
        pytest.skip(str(error))


@pytest.mark.skipif(not is_installed(), reason="no promtool: apt-get install prometheus")
def test_prometheus_accepts_its_configuration(chart: Path, tmp_path: Path) -> None:
    arguments = ["--set", "prometheus.kubeStateMetrics=ksm:8080,prometheus.alertmanagers={alertmanager:9093}"]
    objects = _rendered(chart, *arguments)
    rules = _config_map(objects, "blue-prometheus-rules")
    for name, text in rules.items():
        (tmp_path / name).write_text(text)
    config = tmp_path / "prometheus.yaml"
    told = yaml.safe_load(_config_map(objects, "blue-prometheus-config")["prometheus.yaml"])
    for job in told["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)  # Debian builds promtool without it
    config.write_text(yaml.safe_dump(told))
    for command in (
        ["check", "config", "--syntax-only", config],
        ["check", "rules", *tmp_path.glob("[!p]*.yaml")],
    ):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert set(rules) == {path.name for path in RULES}
    assert not any("RELEASE_" in text or "RUNBOOK_URL" in text for text in rules.values())
    assert 'namespace="tide",release="blue"' in rules["cluster.yaml"]


def test_scraped_pods_get_the_labels_of_the_rules(chart: Path) -> None:
    config = yaml.safe_load(_config_map(_rendered(chart), "blue-prometheus-config")["prometheus.yaml"])
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "tidelog"]
    given = {relabel["target_label"] for relabel in job["relabel_configs"] if "target_label" in relabel}
    assert given == {"namespace", "pod", "release", "component", "broker"}


def test_grafana_has_the_dashboards_and_their_data_source(chart: Path) -> None:
    objects = _rendered(chart)
    dashboards = _config_map(objects, "blue-grafana-dashboards")
    assert {name: json.loads(text) for name, text in dashboards.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }
    sources = yaml.safe_load(_config_map(objects, "blue-grafana-provisioning")["datasources.yaml"])[
        "datasources"
    ]
    services = {o["metadata"]["name"] for o in objects if o["kind"] == "Service"}
    for source in sources:
        assert source["url"].removeprefix("http://").split(":")[0] in services


def test_traces_go_to_the_installed_collector(chart: Path) -> None:
    objects = _rendered(chart)
    (service,) = [
        o for o in objects if o["kind"] == "Service" and o["metadata"]["name"] == "tidelog-collector"
    ]
    told = json.dumps([o for o in objects if o["kind"] in ("Deployment", "StatefulSet", "ConfigMap")])
    assert f"http://{service['metadata']['name']}:4317" in told


def test_traces_without_a_collector_are_refused(chart: Path) -> None:
    with pytest.raises(chart_check.HelmFailedError, match=r"collector\.exportTo: say where traces go"):
        _rendered(chart, "--set", "jaeger.enabled=false")


# -- the chart's objects for Prometheus' operator and Grafana's sidecar


@pytest.fixture(scope="module")
def monitored() -> Objects:
    switches = [f"metrics.{part}.enabled=true" for part in ("podMonitor", "prometheusRule", "dashboards")]
    return _rendered(
        CHART, "--set", ",".join([*switches, "metrics.prometheusRule.runbookUrl=https://example.org/"])
    )


@pytest.mark.skipif(not is_installed(), reason="no promtool: apt-get install prometheus")
def test_promtool_accepts_the_rules_of_the_chart(monitored: Objects, tmp_path: Path) -> None:
    made = [found for found in monitored if found["kind"] == "PrometheusRule"]
    assert len(made) == len(RULES)
    for found in made:
        (tmp_path / f"{found['metadata']['name']}.yaml").write_text(yaml.safe_dump(found["spec"]))
    command = ["promtool", "check", "rules", *tmp_path.iterdir()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = [rule for found in made for group in found["spec"]["groups"] for rule in group["rules"]]
    assert len(rules) == 58
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://example.org/{rule['alert']}.md"
        assert "RELEASE_" not in json.dumps(rule)


def test_the_monitor_adds_the_labels_of_the_rules(monitored: Objects) -> None:
    (monitor,) = [found for found in monitored if found["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert {relabel["targetLabel"] for relabel in endpoint["relabelings"]} == {
        "release",
        "component",
        "broker",
    }


def test_dashboards_and_runbooks_are_config_maps(monitored: Objects) -> None:
    maps = [found.get("data", {}) for found in monitored if found["kind"] == "ConfigMap"]
    data = [text for texts in maps for text in texts.items()]
    dashboards = [json.loads(text) for name, text in data if name.endswith(".json")]
    assert {found.get("uid") for found in dashboards} >= {f"tidelog-{path.stem}" for path in DASHBOARDS}
    assert {name for name, _ in data if name.startswith("Tidelog")} == {
        path.name for path in (CHART / "runbooks").glob("Tidelog*.md")
    }
