"""The chart refuses values without which its templates fail, and values that would have no effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tidelog.settings.broker_settings import BROKER_SETTINGS

Manifest = dict[str, Any]
SERVICES = ("broker", "controller", "group-coordinator")
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


def test_settings_that_the_chart_sets_in_the_environment_are_refused(
    render: Callable[..., list[Manifest]],
) -> None:
    """The environment overrides the files of settings, so that a value there would have no effect."""
    everything = ("tracing.enabled=true", "tracing.endpoint=http://traces:4317", "etcd.prefix=/one")
    set_by_chart = {
        variable["name"]
        for manifest in render(*everything)
        if manifest["kind"] in ("StatefulSet", "Deployment")
        for container in manifest["spec"]["template"]["spec"]["containers"]
        if container["name"] in SERVICES
        for variable in container["env"]
    }
    names = {
        name
        for name in BROKER_SETTINGS
        if f"TIDELOG_{name.removeprefix('tidelog.').upper().replace('.', '_')}" in set_by_chart
    }
    assert {"node.id", "listeners", "tidelog.etcd.endpoints", "tidelog.tracing.sampling.ratio"} <= names
    text = (CHART / "templates/_validation.tpl").read_text("utf-8")
    _, _, rest = text.partition('{{- define "tidelog.chartsOwnSettings" -}}')
    refused = yaml.safe_load(rest.partition("{{- end -}}")[0])
    assert names - refused.keys() == set()
