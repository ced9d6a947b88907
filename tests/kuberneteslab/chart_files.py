"""Dashboards, rules and runbooks of the chart, in the form in which they are provisioned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tidelog"
METRICS_TABLE = ROOT / "docs" / "metrics.md"
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
DEV_DASHBOARD = ROOT / "docs" / "dashboards" / "dev.json"
"""The dashboard of `tidelog dev`, which the chart does not install."""
BOARDS = [*DASHBOARDS, DEV_DASHBOARD]
RULES = sorted((CHART / "rules").glob("*.yaml"))
RUNBOOKS = CHART / "runbooks"

NAMESPACE, RELEASE, FULLNAME = "tide", "blue", "blue-tidelog"
PLACEHOLDERS = {
    "RELEASE_NAMESPACE": NAMESPACE,
    "RELEASE_NAME": RELEASE,
    "RELEASE_FULLNAME": FULLNAME,
    "RUNBOOK_URL": "https://example.org/runbooks",
}
# Words of PromQL at places where a metric could be.
_NO_METRIC = frozenset(["and", "or", "unless", "bool", "offset", "inf", "nan"])


@dataclass(frozen=True)
class Query:
    """One target of one panel."""

    dashboard: str
    panel: str
    kind: str
    unit: str
    legend: str
    expression: str

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.legend}"


@dataclass(frozen=True)
class Rule:
    """One alert; `expression` has the placeholders filled in."""

    file: str
    name: str
    expression: str
    source: Mapping[str, Any]


def dashboard(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the panels without the headings of rows."""
    yield from (panel for panel in dashboard(path)["panels"] if panel["type"] != "row")


def queries() -> Iterator[Query]:
    for path in BOARDS:
        for panel in panels(path):
            for target in panel["targets"]:
                yield Query(
                    path.stem,
                    panel["title"],
                    panel["type"],
                    panel["fieldConfig"]["defaults"]["unit"],
                    target["legendFormat"],
                    target["expr"],
                )


def filled_in(text: str, words: Mapping[str, str] = PLACEHOLDERS) -> str:
    """Returns a rule file as the chart's template renders it."""
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def rules() -> Iterator[Rule]:
    for path in RULES:
        for group in yaml.safe_load(filled_in(path.read_text()))["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    yield Rule(path.stem, rule["alert"], rule["expr"], rule)


def with_variables(expression: str, *, rate_interval: str, range_: str) -> str:
    """Returns the expression as Grafana sends it, if only namespace and release are not set to All."""
    values = {
        "$__rate_interval": rate_interval,
        "$__range": range_,
        "$namespace": NAMESPACE,
        "$release": RELEASE,
        "$broker": ".*",
        "$topic": ".*",
        "$group": ".*",
        "$instance": ".*",
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def selectors(expression: str) -> set[str]:
    """Returns every `metric{labels}` of an expression, without ranges."""
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expression)
    found = re.findall(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()(?:\{[^}]*\})?", _without_strings_outside(bare))
    return {name for name in found if metric_of(name) not in _NO_METRIC}


def metric_of(selector: str) -> str:
    return selector.partition("{")[0]


def _without_strings_outside(expression: str) -> str:
    """Removes string arguments and durations, and keeps the text between braces."""
    parts = re.split(r"(\{[^}]*\})", expression)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r'"[^"]*"|\[[^\]]*\]|\b\d[\w.]*', " ", parts[index])
    return "".join(parts)


def table_of_metrics() -> set[str]:
    """Returns all names of docs/metrics.md, and the additional names of histograms and summaries."""
    names: set[str] = set()
    text = METRICS_TABLE.read_text()
    for name, kind in re.findall(r"^\| `([a-z0-9_]+)` \| (\w+) \|", text, re.MULTILINE):
        names.add(name)
        if kind in ("histogram", "summary"):
            names |= {f"{name}_sum", f"{name}_count"}
        if kind == "histogram":
            names.add(f"{name}_bucket")
    return names | set(re.findall(r"`((?:process|python)_[a-z_]+)`", text))
