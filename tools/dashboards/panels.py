"""The parts of a dashboard: panels, rows, variables, and the JSON that Grafana reads.

The JSON follows Grafana's dashboard schema 39 (Grafana 10.3 and later). In expressions, `SEL` stands for the
labels that select a release, `PODS` for those of exporters that know only pods, and `DEV` for those of one
process that Prometheus scrapes without further labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 39
GRID_COLUMNS = 24
ROW_HEIGHT = 1
PLUGIN = "prometheus"
DATASOURCE = {"type": PLUGIN, "uid": "${datasource}"}
SELECTORS = {
    "SEL": 'namespace=~"$namespace",release=~"$release"',
    "PODS": 'namespace=~"$namespace",pod=~"$release(-.+)?"',
    "DEV": 'instance=~"$instance"',
}
GOOD, WARNING, BAD = "green", "orange", "red"

Expressions = Mapping[str, str]
"""Expressions by legend. A legend may contain Grafana's placeholders, such as `{{broker}}`."""


@dataclass(frozen=True)
class Column:
    """The unit of a table's column, and its colours from the given values on."""

    unit: str = "short"
    warn_from: float | None = None
    bad_from: float | None = None
    good_from: float | None = None


@dataclass(frozen=True)
class Panel:
    """One panel. `steps` are pairs (from value, colour); the first value is minus infinity. `columns` are the
    columns of a table by heading.
    """

    kind: str
    title: str
    about: str
    expressions: Expressions
    unit: str
    width: int
    height: int
    steps: Sequence[tuple[float | None, str]] = ()
    is_stacked: bool = False
    decimals: int | None = None
    least: float | None = 0
    mappings: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice among the values of a label, shown above the dashboard. `metric` is the metric whose values
    are offered.
    """

    name: str
    label: str
    metric: str
    about: str = ""


@dataclass(frozen=True)
class Dashboard:
    """A dashboard, which becomes one JSON file."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[Row]
    selector: str = "SEL"
    """The word for the labels of all series."""


def number(
    title: str,
    expression: str,
    about: str,
    *,
    unit: str = "short",
    bad_from: float | None = None,
    warn_from: float | None = None,
    good_from: float | None = None,
    width: int = 3,
    mappings: Mapping[str, str] | None = None,
) -> Panel:
    """Returns a panel with one figure. Its colour changes at the given values; with `good_from`, lower values
    are bad.
    """
    steps = _steps(warn_from, bad_from, good_from)
    return Panel("stat", title, about, {"": expression}, unit, width, 4, steps, mappings=mappings or {})


def _steps(
    warn_from: float | None, bad_from: float | None, good_from: float | None
) -> list[tuple[float | None, str]]:
    steps: list[tuple[float | None, str]] = [(None, GOOD)]
    if good_from is not None:
        steps = [(None, BAD), (good_from, GOOD)]
    if warn_from is not None:
        steps.append((warn_from, WARNING))
    if bad_from is not None:
        steps.append((bad_from, BAD))
    return steps


def graph(
    title: str,
    expressions: Expressions,
    about: str,
    *,
    unit: str = "short",
    width: int = 8,
    stacked: bool = False,
    least: float | None = 0,
) -> Panel:
    """Returns a panel with lines over time."""
    return Panel("timeseries", title, about, expressions, unit, width, 8, is_stacked=stacked, least=least)


def ranking(title: str, expression: str, legend: str, about: str, *, unit: str = "short") -> Panel:
    """Returns a panel with bars of the current values, the longest first."""
    return Panel("bargauge", title, about, {legend: expression}, unit, 8, 8)


def table(
    title: str, expressions: Expressions, about: str, columns: Mapping[str, Column], *, width: int = 12
) -> Panel:
    """Returns a table with one line for each series and one column for each expression. Legends are the
    headings. The lines with the greatest values of the first column are at the top.
    """
    if columns.keys() != expressions.keys():
        raise ValueError(f"the columns of {title} are not its expressions")
    return Panel("table", title, about, expressions, "short", width, 9, columns=columns)


def states(
    title: str,
    expression: str,
    legend: str,
    about: str,
    mappings: Mapping[str, str],
    *,
    warn_from: float,
    bad_from: float,
    width: int = 24,
    height: int = 14,
) -> Panel:
    """Returns a panel with one line for each series, whose colour is its state over time."""
    steps = _steps(warn_from, bad_from, None)
    return Panel(
        "state-timeline", title, about, {legend: expression}, "short", width, height, steps, mappings=mappings
    )


def heatmap(title: str, expression: str, about: str, *, width: int = 8) -> Panel:
    """Returns a panel with a histogram's buckets over time, in seconds."""
    return Panel("heatmap", title, about, {"{{le}}": expression}, "s", width, 8)


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Returns the dashboard as the JSON that Grafana provisions."""
    return {
        "annotations": {"list": [_restarts_annotation(dashboard.selector)]},
        "description": dashboard.about,
        "editable": True,
        "graphTooltip": 1,
        "links": [
            {
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "tags": ["tidelog"],
                "title": "tidelog",
                "type": "dashboards",
            }
        ],
        "panels": _laid_out(dashboard.rows),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["tidelog"],
        "templating": {"list": [_datasource_variable(), *_chained(dashboard.variables)]},
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "title": dashboard.title,
        "uid": dashboard.uid,
    }


def selected(expression: str) -> str:
    """Returns the expression with its labels."""
    for word, labels in SELECTORS.items():
        expression = expression.replace(word, labels)
    return " ".join(expression.split())


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"h": ROW_HEIGHT, "w": GRID_COLUMNS, "x": 0, "y": y}
        found.append(
            {
                "collapsed": False,
                "gridPos": place,
                "id": len(found) + 1,
                "panels": [],
                "title": row.title,
                "type": "row",
            }
        )
        y += ROW_HEIGHT
        x = height = 0
        for panel in row.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, height = 0, y + height, 0
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            found.append({"id": len(found) + 1, "gridPos": place, **_panel_json(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return found


def _panel_json(panel: Panel) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for value, colour in panel.steps or [(None, GOOD)]]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [
            {"type": "value", "options": {value: {"text": text}}} for value, text in panel.mappings.items()
        ],
    }
    if panel.least is not None and panel.kind == "timeseries":
        defaults["min"] = panel.least
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 30 if panel.is_stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if panel.is_stacked else "none"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [_override(heading, column) for heading, column in panel.columns.items()],
        },
        "options": _options(panel),
        "targets": [
            _target(panel, index, legend, expression)
            for index, (legend, expression) in enumerate(panel.expressions.items())
        ],
        "transformations": _as_columns(panel) if panel.kind == "table" else [],
    }


def _options(panel: Panel) -> Mapping[str, Any]:
    if panel.kind != "table":
        return _OPTIONS[panel.kind]
    sort = [{"displayName": next(iter(panel.expressions)), "desc": True}]
    return {**_OPTIONS["table"], "sortBy": sort}


def _override(heading: str, column: Column) -> dict[str, Any]:
    """Returns the unit and the thresholds of a table's column. A value that is not good has a colour."""
    steps = _steps(column.warn_from, column.bad_from, column.good_from)
    properties: list[dict[str, Any]] = [{"id": "unit", "value": column.unit}]
    if len(steps) > 1:
        thresholds = [
            {"color": "transparent" if colour == GOOD else colour, "value": value} for value, colour in steps
        ]
        properties += [
            {"id": "thresholds", "value": {"mode": "absolute", "steps": thresholds}},
            {"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}},
        ]
    return {"matcher": {"id": "byName", "options": heading}, "properties": properties}


def _target(panel: Panel, index: int, legend: str, expression: str) -> dict[str, Any]:
    is_of_now = panel.kind in ("bargauge", "table")
    return {
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": selected(expression),
        "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        "instant": is_of_now,
        "range": not is_of_now,
        "legendFormat": legend or "__auto",
        "refId": chr(ord("A") + index),
    }


def _as_columns(panel: Panel) -> list[dict[str, Any]]:
    """Merges several tables into one, whose value columns have the legends as headings."""
    legends = list(panel.expressions)
    names = {f"Value #{chr(ord('A') + index)}": legend for index, legend in enumerate(legends)}
    if len(legends) == 1:
        names = {"Value": legends[0]}
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
    ]


def _datasource_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": PLUGIN,
        "current": {},
        "hide": 0,
        "refresh": 1,
    }


def _chained(variables: Sequence[Variable]) -> list[dict[str, Any]]:
    """Returns the variables. The values of each one depend on the choices before it."""
    found: list[dict[str, Any]] = []
    chosen: list[str] = []
    for variable in variables:
        labels = ",".join(f'{name}=~"${name}"' for name in chosen)
        metric = f"{variable.metric}{{{labels}}}" if labels else variable.metric
        query = f"label_values({metric}, {variable.label})"
        found.append(
            {
                "name": variable.name,
                "label": variable.name.capitalize(),
                "description": variable.about,
                "type": "query",
                "datasource": DATASOURCE,
                "definition": query,
                "query": {
                    "qryType": 1,
                    "query": query,
                    "refId": "PrometheusVariableQueryEditor-VariableQuery",
                },
                "includeAll": True,
                "allValue": ".*",
                "multi": variable.name not in _PLACES,
                "current": {"selected": True, "text": "All", "value": "$__all"},
                "refresh": 2,
                "sort": 3,
                "hide": 0,
            }
        )
        if variable.name in _PLACES:
            chosen.append(variable.name)
    return found


def _restarts_annotation(selector: str) -> dict[str, Any]:
    """Returns an annotation: a line across all panels at each start of a selected process."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": selected(f"changes(process_start_time_seconds{{{selector}}}[$__rate_interval]) > 0"),
        "iconColor": "purple",
        "name": "Restarts",
        "titleFormat": "{{instance}} started" if selector == "DEV" else "{{pod}} started",
    }


_PLACES = ("namespace", "release", "instance")
"""The variables on whose choice the values of later ones depend."""
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}
_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "reduceOptions": _LAST},
    "bargauge": {"displayMode": "basic", "orientation": "horizontal", "reduceOptions": _LAST},
    "table": {"showHeader": True, "footer": {"show": False, "reducer": ["sum"]}},
    "state-timeline": {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.85,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s"},
        "tooltip": {"show": True, "yHistogram": True},
    },
}
