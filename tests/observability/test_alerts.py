"""promtool runs each alert of the chart: it fires with its text in its case, and does not fire otherwise."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kuberneteslab.chart_files import (
    CHART,
    DASHBOARDS,
    METRICS_TABLE,
    RULES,
    RUNBOOKS,
    dashboard,
    filled_in,
    metric_of,
    rules,
    selectors,
    table_of_metrics,
)
from kuberneteslab.healthy_hour import healthy_series
from kuberneteslab.prometheus import is_installed
from tidelog.cli.main import main as cli

CASES = Path(__file__).parent / "alert_cases"
RELEASE = 'namespace="RELEASE_NAMESPACE",release="RELEASE_NAME"'
ANOTHER_RELEASE = 'namespace="RELEASE_NAMESPACE",release="another"'
needs_promtool = pytest.mark.skipif(not is_installed(), reason="no promtool: apt-get install prometheus")


def _rules(file: str) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load((CHART / "rules" / f"{file}.yaml").read_text())
    return {rule["alert"]: rule for group in found["groups"] for rule in group["rules"]}


def _cases(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((CASES / f"{file}.yaml").read_text())
    return found


def _promtool_tests(case: dict[str, Any], rule: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the case for promtool, and the case with another release's series."""
    labels = {"severity": rule["labels"]["severity"], **case["labels"]}
    annotations = {
        "summary": case["summary"],
        "description": case.get("description", rule["annotations"]["description"]),
        "runbook_url": f"RUNBOOK_URL/{case['alert']}.md",
    }
    fired = [{"exp_labels": labels, "exp_annotations": annotations}]
    asked = [
        {"eval_time": moment, "alertname": case["alert"], "exp_alerts": []} for moment in case["silent_at"]
    ]
    at_fire = {"eval_time": case["fires_at"], "alertname": case["alert"]}
    tests = [_test(case, RELEASE, [*asked, {**at_fire, "exp_alerts": fired}])]
    if any("SEL" in series for series in case["series"]) and case.get("others_are_silent", True):
        others = {**case, "series": {**case["series"], **_always_there(rule)}}
        tests.append(_test(others, ANOTHER_RELEASE, [{**at_fire, "exp_alerts": []}]))
    return tests


def _always_there(rule: dict[str, Any]) -> dict[str, str]:
    """Returns a series of the release itself, so that `absent` does not fire."""
    if "absent" not in rule["expr"]:
        return {}
    name = next(iter(selectors(rule["expr"][rule["expr"].index("absent") :])))
    return {name: "1x600"}


def _test(case: dict[str, Any], release: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    series = [
        {"series": name.replace("SEL", release), "values": str(values)}
        for name, values in case["series"].items()
    ]
    interval = case.get("interval", "1m")
    return {"interval": interval, "input_series": series, "alert_rule_test": asked}


@needs_promtool
@pytest.mark.parametrize("file", [path.stem for path in RULES])
def test_alerts_fire_and_are_silent(file: str, tmp_path: Path) -> None:
    rules, by_interval = _rules(file), defaultdict(list)
    for case in _cases(file):
        by_interval[case.get("interval", "1m")] += _promtool_tests(case, rules[case["alert"]])
    for interval, tests in by_interval.items():
        told = {"rule_files": [str(CHART / "rules" / f"{file}.yaml")], "evaluation_interval": interval}
        (tmp_path / f"{file}_{interval}.yaml").write_text(yaml.safe_dump({**told, "tests": tests}))
    command = ["promtool", "test", "rules", *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [path.stem for path in RULES])
def test_every_alert_has_a_case(file: str) -> None:
    assert {case["alert"] for case in _cases(file)} == set(_rules(file))


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rules_use_existing_metrics(path: Path) -> None:
    known = table_of_metrics()
    foreign = ("up", "etcd_", "kube_", "kubelet_", "container_")
    asked = {metric_of(name) for rule in _rules(path.stem).values() for name in selectors(rule["expr"])}
    assert asked, f"no metric was found in {path}"
    assert not {n for n in asked if n not in known and not n.startswith(foreign)}, f"not in {METRICS_TABLE}"


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_rules_use_only_their_release(path: Path) -> None:
    for name, rule in _rules(path.stem).items():
        for selector in selectors(rule["expr"]):
            assert 'namespace="RELEASE_NAMESPACE"' in selector, (name, selector)
            assert "RELEASE_NAME" in selector or "RELEASE_FULLNAME" in selector or "phase=" in selector, (
                name,
                selector,
            )


def test_every_case_has_a_moment_without_the_alert() -> None:
    for path in RULES:
        for case in _cases(path.stem):
            assert case["silent_at"], f"{path.stem}: {case['alert']} needs a moment at which it is silent"


def _in_the_healthy_hour(directory: Path, asked: list[dict[str, Any]]) -> str:
    """Asks at the end of the hour, with all rules. Returns what promtool says about wrong answers."""
    for path in RULES:
        (directory / path.name).write_text(filled_in(path.read_text()))
    series = [{"series": name, "values": values} for name, values in healthy_series()]
    told = {
        "rule_files": [path.name for path in RULES],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": asked}],
    }
    test = directory / "healthy_hour_test.yaml"
    test.write_text(yaml.safe_dump(told))
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@needs_promtool
def test_no_alert_fires_in_a_healthy_hour(tmp_path: Path) -> None:
    """The topics of the hour have retention times of days, an hour and two minutes."""
    fired = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))'
    assert not _in_the_healthy_hour(tmp_path, [{"expr": fired, "eval_time": "59m", "exp_samples": []}])


@needs_promtool
def test_the_healthy_hour_has_what_each_alert_looks_at(tmp_path: Path) -> None:
    """An alert would also be silent without its series."""
    asked = [
        {
            "expr": f"count(count_over_time({selector}[1h])) > bool 0",
            "eval_time": "59m",
            "exp_samples": [{"value": 1}],
        }
        for selector in sorted({selector for rule in rules() for selector in selectors(rule.expression)})
    ]
    assert not _in_the_healthy_hour(tmp_path, asked)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    alerts = {name for path in RULES for name in _rules(path.stem)}
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == alerts


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("Tidelog*.md")), ids=lambda path: path.stem)
def test_runbooks_explain_meaning_and_actions(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n")
    for heading in ("## What it means", "## Look", "## Do"):
        assert f"\n{heading}\n" in text, heading


def test_annotations_are_complete_sentences() -> None:
    for path in RULES:
        for name, rule in _rules(path.stem).items():
            assert name.startswith("Tidelog")
            assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
            assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
            assert rule["annotations"]["runbook_url"] == f"RUNBOOK_URL/{name}.md"
            assert rule["annotations"]["description"].strip().endswith("."), name


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("Tidelog*.md")), ids=lambda path: path.stem)
def test_runbooks_name_existing_things(path: Path) -> None:
    text = path.read_text()
    titles = {
        panel["title"] for dashboard_path in DASHBOARDS for panel in dashboard(dashboard_path)["panels"]
    }
    titles |= {dashboard(p)["title"].removeprefix("tidelog / ") for p in DASHBOARDS}
    assert set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text)) <= titles
    for page in re.findall(r"\]\((\w+\.md)\)", text):
        assert (RUNBOOKS / page).exists(), page
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name in re.findall(r"`((?:brokers|controllers|groupCoordinators|etcd|metrics)(?:\.\w+)+)`", text):
        _lookup(values, name)
    for command in re.findall(r"`tidelog ([a-z-]+)", text):
        assert command in cli.list_commands(click.Context(cli)), command


def _lookup(values: dict[str, Any], name: str) -> None:
    """Raises KeyError if the chart has no such value. Users may add any key to a map that is empty in the
    chart.
    """
    found: Any = values
    for part in name.split("."):
        if found == {}:
            return
        found = found[part]
