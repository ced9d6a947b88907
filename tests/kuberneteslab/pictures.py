"""Draws the dashboards from their own queries: `python -m kuberneteslab.pictures docs/dashboards`.

Grafana does not draw these pictures, because that would require a Grafana. They show the same panels at the
same places. The data come from a Prometheus that scraped a cluster under load while a broker and a controller
were killed.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from kuberneteslab.chart_files import BOARDS, dashboard, with_variables
from kuberneteslab.prometheus import Prometheus, Series
from kuberneteslab.watched_cluster import WatchedCluster, watched_cluster

PART_S = 30.0
WATCHED_S = 7 * PART_S
RATE_INTERVAL, STEP_S = "15s", 2.0
MOST_BYTES = 200_000
COLUMN_IN, ROW_IN, DPI = 0.52, 0.27, 100
BACKGROUND, PANEL, TEXT, GRID = "#111217", "#181b1f", "#d0d2d8", "#2c3036"
LINES = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#fa6400", "#37872d"]
COLOURS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}
MOST_LEGENDS, MOST_LINES_OF_A_TABLE = 8, 8
MOST_LEGEND_CHARS = 36
"""A longer name keeps its end, and two of them fit beside each other."""
LEGEND_ROW_SHARE = 0.09
"""The part of a panel's height that two names take. No line is drawn there."""


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, watched_cluster(Path(directory)) as watched:
        _break_things(watched)
        for path in BOARDS:
            save(draw(dashboard(path), watched.prometheus), target / f"{path.stem}.png")


def _break_things(watched: WatchedCluster) -> None:
    """Lets the cluster run, kills a broker and restarts it, and then kills the active controller."""
    cluster = watched.cluster
    time.sleep(2 * PART_S)
    began_s = time.monotonic()
    cluster.kill("broker-2")
    time.sleep(PART_S)
    watched.start("broker-2")
    time.sleep(PART_S)
    controller = cluster.active_controller()
    cluster.kill(controller)
    time.sleep(PART_S / 2)
    watched.start(controller)
    # The pictures begin shortly before the first kill.
    time.sleep(max(0.0, WATCHED_S - PART_S - (time.monotonic() - began_s)))


def draw(source: Mapping[str, Any], prometheus: Prometheus) -> Figure:
    """Draws all panels of a dashboard at their places."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in source["panels"]) + 2
    figure = pyplot.figure(figsize=(24 * COLUMN_IN, height * ROW_IN), dpi=DPI, facecolor=BACKGROUND)
    figure.text(0.008, 1 - 1.0 / height, source["title"], color=TEXT, fontsize=13, va="center")
    for panel in source["panels"]:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 2) / height
        if panel["type"] == "row":
            middle = top - 0.5 / height
            figure.text(
                0.008, middle, f"v  {panel['title']}", color=TEXT, fontsize=9, va="center", weight="bold"
            )
            continue
        box = (place["x"] / 24, top - place["h"] / height, place["w"] / 24, place["h"] / height)
        _draw_panel(figure, box, panel, prometheus, height)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG with few colours, and with fewer if it is too large."""
    figure.savefig(path, facecolor=BACKGROUND)
    pyplot.close(figure)
    picture = Image.open(path).convert("RGB")
    for colours in (64, 32, 16):
        picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size < MOST_BYTES:
            return
    raise RuntimeError(f"{path} has {path.stat().st_size} bytes")


def _draw_panel(
    figure: Figure, box: tuple[float, float, float, float], panel: Any, prometheus: Prometheus, height: int
) -> None:
    x, y, w, h = box
    gap_x, gap_y = 0.003, 0.12 / height
    frame = figure.add_axes((x + gap_x, y + gap_y, w - 2 * gap_x, h - 2 * gap_y), facecolor=PANEL)
    frame.set_xticks([])
    frame.set_yticks([])
    for spine in frame.spines.values():
        spine.set_color(GRID)
    title_y = y + h - 0.75 / height
    figure.text(x + 2.5 * gap_x, title_y, panel["title"], color=TEXT, fontsize=7.5, va="center")
    inner = (x + 0.035, y + 0.9 / height, w - 0.042, h - 2.2 / height)
    _KINDS[panel["type"]](figure, inner, panel, prometheus)


def _asked(target: Any) -> str:
    return with_variables(target["expr"], rate_interval=RATE_INTERVAL, range_=f"{WATCHED_S:.0f}s")


def _legend(template: str, labels: Mapping[str, str]) -> str:
    if template == "__auto":
        return ""
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template).strip()
    return text if len(text) <= MOST_LEGEND_CHARS else "…" + text[1 - MOST_LEGEND_CHARS :]


def _axes(figure: Figure, box: Any) -> Axes:
    axes = figure.add_axes(box, facecolor="none")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(colors="#8e9198", labelsize=5.5, length=0)
    return axes


def _points(one: Any) -> tuple[list[float], list[float]]:
    """Returns the points on a grid, with gaps at times without a scrape."""
    values = {round(float(t) / STEP_S): float(v) for t, v in one["values"]}
    last = max(values)
    steps = range(last - int(WATCHED_S / STEP_S), last + 1)
    return [(step - steps[0]) * STEP_S for step in steps], [values.get(step, math.nan) for step in steps]


def _draw_lines(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    axes = _axes(figure, box)
    axes.grid(color=GRID, linewidth=0.5)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    is_stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    drawn: list[tuple[str, list[float], list[float]]] = []
    for target in panel["targets"]:
        for one in prometheus.over(_asked(target), WATCHED_S, STEP_S):
            times, values = _points(one)
            drawn.append((_legend(target["legendFormat"], one["metric"]), times, values))
    drawn.sort(key=lambda line: line[0])
    floor: dict[float, float] = {}
    for index, (name, times, values) in enumerate(drawn):
        colour = LINES[index % len(LINES)]
        if is_stacked:
            below = [floor.get(t, 0.0) for t in times]
            values = [b + v for b, v in zip(below, values, strict=True)]
            floor |= {t: v for t, v in zip(times, values, strict=True) if not math.isnan(v)}
            axes.fill_between(times, below, values, color=colour, alpha=0.3, linewidth=0)
        label = name if index < MOST_LEGENDS else None
        axes.plot(times, values, color=colour, linewidth=0.9, label=label)
    axes.set_xlim(0, WATCHED_S)
    low, high = axes.get_ylim()
    if panel["fieldConfig"]["defaults"].get("min") == 0:
        low, high = 0, high if high > 0.06 else 1
    legend_share = LEGEND_ROW_SHARE * math.ceil(min(len(drawn), MOST_LEGENDS) / 2)
    axes.set_ylim(low, low + (high - low) / (1 - legend_share))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.yaxis.set_major_formatter(lambda value, _: quantity(value, unit))
    axes.yaxis.set_major_locator(pyplot.MaxNLocator(5))
    if drawn:
        axes.legend(
            fontsize=5,
            ncols=2,
            loc="upper left",
            labelcolor=TEXT,
            facecolor=PANEL,
            framealpha=0.6,
            edgecolor="none",
        )


def _draw_number(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    series = prometheus.over(_asked(panel["targets"][0]), WATCHED_S, STEP_S)
    axes = _axes(figure, box)
    axes.set_xticks([])
    axes.set_yticks([])
    if not series:
        axes.text(0.45, 0.5, "no data", color=TEXT, ha="center", va="center", transform=axes.transAxes)
        return
    times, values = _points(series[0])
    known = [value for value in values if not math.isnan(value)]
    colour = COLOURS["green"]
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or values[-1] >= step["value"]:
            colour = COLOURS[step["color"]]
    texts = {
        m: option["text"] for mapping in defaults["mappings"] for m, option in mapping["options"].items()
    }
    text = texts.get(f"{values[-1]:.0f}", quantity(values[-1], defaults["unit"]))
    axes.plot(times, values, color=colour, linewidth=0.6, alpha=0.7)
    axes.fill_between(times, min(0.0, *known), values, color=colour, alpha=0.15, linewidth=0)
    axes.set_ylim(min(0.0, *known), (max(known) or 1) * 3)
    axes.text(0.42, 0.7, text, color=colour, fontsize=14, ha="center", va="center", transform=axes.transAxes)


def _draw_bars(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    unit, target = panel["fieldConfig"]["defaults"]["unit"], panel["targets"][0]
    series = sorted(prometheus.now(_asked(target)), key=lambda one: float(one["value"][1]))
    x, y, w, h = box
    axes = _axes(figure, (x + 0.05, y, w - 0.05, h))
    names = [_legend(target["legendFormat"], one["metric"]) for one in series]
    values = [float(one["value"][1]) for one in series]
    axes.barh(names, values, color=LINES[0], alpha=0.7)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value, unit))
    axes.xaxis.set_major_locator(pyplot.MaxNLocator(4))


def _draw_table(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    columns: dict[str, dict[tuple[tuple[str, str], ...], str]] = {}
    values: dict[tuple[tuple[str, str], ...], float] = {}
    units = {
        override["matcher"]["options"]: entry["value"]
        for override in panel["fieldConfig"]["overrides"]
        for entry in override["properties"]
        if entry["id"] == "unit"
    }
    for target in panel["targets"]:
        answer: Series = prometheus.now(_asked(target))
        unit = units[target["legendFormat"]]
        if not columns:
            values = {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in answer}
        columns[target["legendFormat"]] = {
            tuple(sorted(one["metric"].items())): quantity(float(one["value"][1]), unit) for one in answer
        }
    keys = sorted(
        {key for column in columns.values() for key in column},
        key=lambda key: (-values.get(key, -math.inf), key),
    )[:MOST_LINES_OF_A_TABLE]
    axes = _axes(figure, box)
    axes.set_axis_off()
    if not keys:
        return
    heads = [name for name, _ in keys[0]] + list(columns)
    cells = [[v for _, v in key] + [column.get(key, "") for column in columns.values()] for key in keys]
    table = axes.table(cellText=cells, colLabels=heads, loc="upper left", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(6)
    for cell in table.get_celld().values():
        cell.set_edgecolor(GRID)
        cell.get_text().set_color(TEXT)


def _draw_states(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    target = panel["targets"][0]
    lines = sorted(
        (_legend(target["legendFormat"], one["metric"]), *_points(one))
        for one in prometheus.over(_asked(target), WATCHED_S, STEP_S)
    )
    x, y, w, h = box
    axes = _axes(figure, (x + 0.05, y, w - 0.05, h))
    for row, (_, times, values) in enumerate(lines):
        for step in steps:
            at = step["value"] if step["value"] is not None else -math.inf
            spans = [
                (time_s, STEP_S)
                for time_s, value in zip(times, values, strict=True)
                if not math.isnan(value) and value >= at
            ]
            axes.broken_barh(spans, (row - 0.4, 0.8), color=COLOURS[step["color"]])
    axes.set_yticks(range(len(lines)), [name for name, _, _ in lines])
    axes.set_xlim(0, WATCHED_S)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")


def _draw_heatmap(figure: Figure, box: Any, panel: Any, prometheus: Prometheus) -> None:
    answer = prometheus.over(_asked(panel["targets"][0]), WATCHED_S, STEP_S * 3)
    buckets = sorted(answer, key=lambda one: float(one["metric"]["le"]))
    axes = _axes(figure, box)
    count = min(len(one["values"]) for one in buckets)
    rows, before = [], [0.0] * count
    for one in buckets:
        values = [0.0 if v == "NaN" else float(v) for _, v in one["values"][-count:]]
        rows.append([max(0.0, now - last) for now, last in zip(values, before, strict=True)])
        before = values
    axes.imshow(rows, aspect="auto", origin="lower", cmap="Oranges", interpolation="nearest")
    axes.set_yticks(
        range(0, len(buckets), 3), [buckets[i]["metric"]["le"] for i in range(0, len(buckets), 3)]
    )
    axes.set_xticks([])


def quantity(value: float, unit: str) -> str:
    """Formats a number nearly as Grafana does."""
    if math.isnan(value):
        return "-"
    if unit in ("bytes", "Bps"):
        for name, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}B{'/s' if unit == 'Bps' else ''}"
        return f"{value:.3g} B{'/s' if unit == 'Bps' else ''}"
    if unit in ("percentunit", "percent"):
        return f"{value * (100 if unit == 'percentunit' else 1):.3g} %"
    if unit in ("s", "ms"):
        return _duration(value if unit == "s" else value / 1000)
    suffix = {"ops": "/s", "reqps": "/s", "wps": "/s", "rps": "/s"}.get(unit, "")
    if abs(value) >= 999.5:
        return f"{value / 1000:.3g} k{suffix}"
    return f"{value:.3g}{suffix}"


def _duration(value_s: float) -> str:
    for name, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if abs(value_s) >= size * (2 if size > 1 else 1):
            return f"{value_s / size:.3g} {name}"
    return f"{value_s * 1e6:.3g} us" if value_s else "0"


_KINDS: Mapping[str, Callable[[Figure, Any, Any, Prometheus], None]] = {
    "timeseries": _draw_lines,
    "stat": _draw_number,
    "bargauge": _draw_bars,
    "table": _draw_table,
    "heatmap": _draw_heatmap,
    "state-timeline": _draw_states,
}

if __name__ == "__main__":
    main()
