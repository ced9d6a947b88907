"""The report of a run: `report.json`, `report.html` and two pictures, made from the files in its
directory.
"""

from __future__ import annotations

import dataclasses
import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaoslab import pictures
from chaoslab.checker import KINDS, Verdict, judge, permitted
from chaoslab.history import History
from chaoslab.recovery import Acknowledgements, by_kind, faults_of, kills_in

HISTORY_FILE, SAMPLES_FILE, EVENTS_FILE = "history.jsonl.gz", "samples.jsonl", "events.jsonl"
REPORT_FILE, PAGE_FILE = "report.json", "report.html"
TIMELINE_FILE, RECOVERIES_FILE = "timeline.png", "recoveries.png"
SHOWN_ANOMALIES = 100
STYLE = (
    "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}"
    "img{max-width:100%}.bad{color:#c0392b}.good{color:#1e8449}"
)


def write_report(
    directory: Path, topic: str, experiments: Sequence[Mapping[str, Any]], title: str
) -> dict[str, Any]:
    """Judges the history and returns the content of report.json. `experiments` holds the results of
    `run_experiment`.
    """
    history = History.load(directory / HISTORY_FILE)
    samples = _lines(directory / SAMPLES_FILE)
    events = _lines(directory / EVENTS_FILE)
    load = json.loads((directory / "verdict.json").read_text())
    verdict = judge(history)
    acknowledgements = Acknowledgements(history, topic)
    faults = faults_of(events, samples, acknowledgements)
    started_s, ended_s = acknowledgements.span_s()
    report: dict[str, Any] = {
        "title": title,
        "seconds": round(ended_s - started_s, 1),
        "kills": kills_in(events),
        "faults": len(faults),
        "anomalies": _anomalies(verdict),
        "anomaly_count": len(verdict.anomalies),
        "permitted": dict(Counter(anomaly.kind for anomaly in permitted(history))),
        "complaints": load["complaints"],
        "unread": load["unread"],
        "looked_at": dict(verdict.counts),
        "longest_gap_s": round(acknowledgements.silence_s(started_s, ended_s), 2),
        "by_kind": by_kind(faults),
        "experiments": list(experiments),
        "timeline": [
            dataclasses.asdict(fault) | {"at_s": round(fault.at_s - started_s, 2)} for fault in faults
        ],
    }
    (directory / REPORT_FILE).write_text(json.dumps(report, indent=1))
    pictures.timeline(directory / TIMELINE_FILE, samples, faults, f"{title}: {line(report)}")
    if faults:
        pictures.recoveries(directory / RECOVERIES_FILE, faults)
    (directory / PAGE_FILE).write_text(_page(report))
    return report


def line(report: Mapping[str, Any]) -> str:
    """Returns the last line of a run."""
    return (
        f"{report['kills']} kills, {report['anomaly_count']} anomalies, "
        f"longest gap {report['longest_gap_s']:.1f} s"
    )


def is_good(report: Mapping[str, Any]) -> bool:
    return not (
        report["anomaly_count"]
        or report["complaints"]
        or report["unread"]
        or any(e["status"] != "completed" or e["failures"] for e in report["experiments"])
    )


def _anomalies(verdict: Verdict) -> list[dict[str, Any]]:
    return [anomaly._asdict() for anomaly in verdict.anomalies[:SHOWN_ANOMALIES]]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_text().splitlines()]


def _page(report: Mapping[str, Any]) -> str:
    verdict = "good" if is_good(report) else "bad"
    looked_at = ", ".join(f"{count:,} {name}" for name, count in report["looked_at"].items())
    found = {kind: sum(1 for a in report["anomalies"] if a["kind"] == kind) for kind in KINDS}
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{html.escape(report['title'])}</title>",
        f"<style>{STYLE}</style><h1>{html.escape(report['title'])}</h1>",
        f"<p class={verdict}><b>{html.escape(line(report))}</b></p>",
        f"<p>{report['seconds']:,.0f} s under load; looked at: {looked_at}.</p>",
        f"<img src={TIMELINE_FILE} alt='faults over throughput, ISR and lag'>",
        "<h2>Anomalies</h2>",
        _table(("anomaly", "count"), list(found.items())),
        "<h2>What Kafka's transactions permit</h2>",
        _table(("finding", "count"), list(report["permitted"].items())),
    ]
    if report["anomalies"]:
        columns = ("kind", "topic", "partition", "offset", "detail")
        parts.append(_table(columns, [[a[c] for c in columns] for a in report["anomalies"]]))
    texts = [*report["complaints"], *(f"not read to its end: {name}" for name in report["unread"])]
    texts += [f"{e['name']}: {failure}" for e in report["experiments"] for failure in e["failures"]]
    parts += [f"<p class=bad>{html.escape(text)}</p>" for text in texts]
    parts += ["<h2>How long each kind of fault was felt, seconds</h2>", _kinds(report["by_kind"])]
    if report["faults"]:
        parts.append(f"<img src={RECOVERIES_FILE} alt='time to the next write and to the whole ISR'>")
    columns = ("title", "status", "seconds")
    rows = [[e.get(c, "") for c in columns] for e in report["experiments"]]
    parts += ["<h2>Experiments</h2>", _table(columns, rows)]
    return "\n".join(parts) + "\n"


def _kinds(table: Mapping[str, Mapping[str, Any]]) -> str:
    columns = ("count", "next_write_s_median", "next_write_s_max", "silence_s_max")
    columns += ("whole_isr_s_median", "whole_isr_s_max")
    heads = ("fault", "count", "next write, median", "worst", "longest silence", "whole ISR, median", "worst")
    return _table(heads, [[kind, *(row[c] for c in columns)] for kind, row in table.items()])


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cells(tag: str, values: Sequence[Any]) -> str:
        shown = ("-" if value is None else html.escape(str(value)) for value in values)
        return "<tr>" + "".join(f"<{tag}>{value}</{tag}>" for value in shown) + "</tr>"

    return "<table>" + cells("th", heads) + "".join(cells("td", row) for row in rows) + "</table>"
