"""docs/metrics.md and the code agree on the name, type and labels of every metric."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric

from clusterlab.all_metrics import full_metrics
from tidelog.metrics.endpoint import MetricFamilies

TABLE = Path(__file__).parents[3] / "docs" / "metrics.md"
SOURCES = set("bcg*")
_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*)\| ([bcg*]+) \| ([^|]+) \|")


class Row(NamedTuple):
    kind: str
    unit: str
    labels: frozenset[str]
    optional: frozenset[str]


def rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    for line in TABLE.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        row = _ROW.fullmatch(line)
        assert row is not None, f"not a row of the table: {line}"
        name, kind, unit, labels, source, _ = row.groups()
        assert name not in found, f"{name} has two rows"
        assert set(source) <= SOURCES
        words = [word.strip() for word in labels.split(",") if word.strip()]
        optional = frozenset(word[1:-1] for word in words if word.startswith("["))
        found[name] = Row(kind, unit.strip(), frozenset(word.strip("[]") for word in words), optional)
    return found


def shown_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def shown() -> dict[str, Metric]:
    return {shown_name(family): family for family in MetricFamilies(full_metrics().collectors).collect()}


def test_code_and_documentation_have_the_same_names() -> None:
    assert shown().keys() - rows().keys() == set(), "not in docs/metrics.md"
    assert rows().keys() - shown().keys() == set(), "in docs/metrics.md only"


def test_all_budgets_are_shown() -> None:
    held = {sample.labels["budget"]: sample.value for sample in shown()["tidelog_budget_held"].samples}
    clients = {"client_metrics_clients": 0, "client_metrics_series": 0, "client_metrics_bytes": 0}
    assert held == {"request_memory": 0, "share_sessions": 5, **clients}


def test_code_and_documentation_have_the_same_types_and_labels() -> None:
    table = rows()
    for name, family in shown().items():
        row = table[name]
        assert (name, family.type) == (name, row.kind)
        assert family.samples, name
        in_use = frozenset(label for sample in family.samples for label in sample.labels)
        assert (name, in_use) == (name, row.labels)
        for sample in family.samples:
            missing = row.labels - row.optional - sample.labels.keys()
            is_part = sample.name.endswith(("_sum", "_count"))  # a histogram, here without `le`
            assert missing <= ({"le"} if is_part else set()), (name, sample.labels)


def test_a_name_that_ends_in_a_unit_has_that_unit() -> None:
    for name, row in rows().items():
        stem = name.removesuffix("_total")
        if stem.endswith(("_seconds", "_secs")):
            assert row.unit == "s", name
        if stem.endswith("_bytes"):
            assert row.unit == "bytes", name
        if stem.endswith(("_ms", "timems")):
            assert row.unit == "ms", name


def test_every_name_has_one_family() -> None:
    """A scrape contains each name once, also if broker, controller and coordinator share a process."""
    names = [shown_name(family) for family in MetricFamilies(full_metrics().collectors).collect()]
    assert len(names) == len(set(names))
