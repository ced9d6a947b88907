"""docs/metrics.md and the code agree on every metric: its name, its type, its labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric

from metricslab import full_metrics
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
        assert name not in found, f"{name} is there twice"
        assert set(source) <= SOURCES
        words = [word.strip() for word in labels.split(",") if word.strip()]
        optional = frozenset(word[1:-1] for word in words if word.startswith("["))
        found[name] = Row(kind, unit.strip(), frozenset(word.strip("[]") for word in words), optional)
    return found


def shown_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def shown() -> dict[str, Metric]:
    return {shown_name(family): family for family in MetricFamilies(full_metrics().collectors).collect()}


def test_names() -> None:
    assert shown().keys() - rows().keys() == set(), "not in docs/metrics.md"
    assert rows().keys() - shown().keys() == set(), "in docs/metrics.md only"


def test_types_and_labels() -> None:
    table = rows()
    for name, family in shown().items():
        row = table[name]
        assert (name, family.type) == (name, row.kind)
        assert family.samples, name
        in_use = frozenset(label for sample in family.samples for label in sample.labels)
        assert (name, in_use) == (name, row.labels)
        for sample in family.samples:
            missing = row.labels - row.optional - sample.labels.keys()
            is_part = sample.name.endswith(("_sum", "_count"))  # of a histogram: without `le`
            assert missing <= ({"le"} if is_part else set()), (name, sample.labels)


def test_units_in_names() -> None:
    """What ends in a unit is in that unit."""
    for name, row in rows().items():
        stem = name.removesuffix("_total")
        if stem.endswith(("_seconds", "_secs")):
            assert row.unit == "s", name
        if stem.endswith("_bytes"):
            assert row.unit == "bytes", name
        if stem.endswith(("_ms", "timems")):
            assert row.unit == "ms", name


def test_every_family_has_one_meaning() -> None:
    """A scrape has each name once, also where broker, controller and coordinator share a process."""
    names = [shown_name(family) for family in MetricFamilies(full_metrics().collectors).collect()]
    assert len(names) == len(set(names))
