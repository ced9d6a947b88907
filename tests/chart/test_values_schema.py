"""The schema of the chart's values requires what the templates cannot do without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts/tidelog"


def optional_switches(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, bool) and name not in schema.get("required", ()):
            yield path + name
        if isinstance(value, dict):
            yield from optional_switches(value, schema.get("properties", {}).get(name, {}), f"{path}{name}.")


def test_every_switch_has_a_value() -> None:
    """Helm removes a default whose value is null. A switch without a value would be off, such as
    `authorization.enabled`.
    """
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert list(optional_switches(values, schema)) == []
