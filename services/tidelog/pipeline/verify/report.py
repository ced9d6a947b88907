"""Renders a verdict as one HTML page."""

from __future__ import annotations

from html import escape
from typing import Final

from tidelog.pipeline.verify.verdict import HOLE_KINDS, PartitionVerdict, Verdict

_COLOURS: Final = {
    "rows": "#4c956c",
    "marker": "#8d99ae",
    "abort": "#577590",
    "compaction": "#b5838d",
    "retention": "#d4a373",
    "quarantined": "#f2a541",
    "expired": "#c9c9c9",
    "missing": "#c1121f",
}
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
color: #222 }
h1 { font-size: 1.4rem } .complete { color: #2d6a4f } .incomplete { color: #c1121f }
table { border-collapse: collapse; width: 100% } th, td { text-align: right; padding: .3rem .6rem }
th { border-bottom: 2px solid #999 } td { border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } .bad { color: #c1121f; font-weight: bold }
.bar { display: flex; height: 1rem; width: 16rem; background: #eee } .bar div { height: 100% }
.key span { display: inline-block; margin-right: 1.2rem } .key i { display: inline-block; width: .8rem;
height: .8rem; margin-right: .3rem }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } td { border-color: #444 } }
"""


def report_html(table: str, place: str, verdict: Verdict) -> str:
    """Returns the page. `place` says where the log was read."""
    word, kind = ("complete", "complete") if verdict.is_complete else ("not complete", "incomplete")
    problems = "".join(f"<li>{escape(problem.text)}</li>" for problem in verdict.problems)
    rows = "".join(_row(each) for each in verdict.partitions)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(table)} verified</title>
<style>{_STYLE}</style></head><body>
<h1>{escape(table)} is <span class="{kind}">{word}</span></h1>
<p>{escape(verdict.line())}; compared with {escape(place)}.</p>
{f"<h2>What is wrong</h2><ul>{problems}</ul>" if problems else ""}
<h2>Partitions</h2>
<p class="key">{_key()}</p>
<table><tr><th>partition</th><th>offsets</th><th>rows</th><th>lost</th><th>duplicated</th><th>changed</th>
<th>holes</th><th>only in the ledger</th><th>behind</th><th>what offsets hold</th></tr>{rows}</table>
</body></html>
"""


def _row(each: PartitionVerdict) -> str:
    faults = "".join(
        f'<td class="bad">{count:,}</td>' if count else "<td>0</td>"
        for count in (each.lost, each.duplicated, each.changed)
    )
    holes = sum(each.holes.values())
    return (
        f"<tr><td>{escape(each.topic)}-{each.partition}</td><td>{each.start:,}-{each.end - 1:,}</td>"
        f"<td>{each.rows:,}</td>{faults}<td>{holes:,}</td><td>{each.only_in_ledger:,}</td>"
        f"<td>{each.behind:,}</td><td>{_bar(each)}</td></tr>"
    )


def _bar(each: PartitionVerdict) -> str:
    """Renders a bar in which each offset appears once: with a row, as a hole of some kind, or as missing."""
    offsets = max(1, each.end - each.start)
    parts = {"rows": max(0, each.rows - each.duplicated), **each.holes}
    parts["missing"] = max(0, offsets - sum(parts.values()))
    shown = "".join(
        f'<div title="{kind}: {count:,}" style="width:{100 * count / offsets:.3f}%;'
        f'background:{_COLOURS[kind]}"></div>'
        for kind, count in parts.items()
        if count
    )
    return f'<div class="bar">{shown}</div>'


def _key() -> str:
    kinds = ("rows", *HOLE_KINDS, "missing")
    return "".join(f'<span><i style="background:{_COLOURS[kind]}"></i>{kind}</span>' for kind in kinds)
