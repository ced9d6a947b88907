"""The result of a verification, as values, text, JSON, and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Final

MARKER: Final = "marker"
ABORT: Final = "abort"
COMPACTION: Final = "compaction"
RETENTION: Final = "retention"
QUARANTINED: Final = "quarantined"
EXPIRED: Final = "expired"
"""The ledger recorded a hole when it was archived. The log has since deleted those offsets, so the reason is
unknown.
"""
HOLE_KINDS: Final = (MARKER, ABORT, COMPACTION, RETENTION, QUARANTINED, EXPIRED)

_NAMED_RANGES: Final = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault, as a sentence. `kind` is lost, duplicated, changed, gap, overlap, unledgered, phantom,
    unexplained, truncated, diverged, recreated, miscounted or schema.
    """

    kind: str
    text: str
    topic: str = ""
    partition: int = -1


@dataclass(slots=True)
class PartitionVerdict:
    """The result for one partition. Offsets [start, end) are archived."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    unexplained: int = 0
    holes: dict[str, int] = field(default_factory=dict)
    only_in_ledger: int = 0
    """The number of rows whose records the log no longer holds. They were compared only with the ledger's
    hash.
    """
    behind: int = 0
    """The number of offsets in the log that are not archived yet."""

    def add_holes(self, kind: str, count: int) -> None:
        if count:
            self.holes[kind] = self.holes.get(kind, 0) + count


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict is complete if there is no fault."""

    partitions: tuple[PartitionVerdict, ...]
    problems: tuple[Problem, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(each.duplicated for each in self.partitions)

    @property
    def changed(self) -> int:
        return sum(each.changed for each in self.partitions)

    @property
    def unexplained(self) -> int:
        return sum(each.unexplained for each in self.partitions)

    @property
    def holes(self) -> dict[str, int]:
        """Returns the explained holes by kind, without empty kinds."""
        found = {kind: sum(each.holes.get(kind, 0) for each in self.partitions) for kind in HOLE_KINDS}
        return {kind: count for kind, count in found.items() if count}

    @property
    def is_complete(self) -> bool:
        return not self.problems

    def line(self) -> str:
        """Returns a line with rows, lost, duplicated, changed and holes."""
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.holes.items())
        explained = sum(self.holes.values())
        told = f"{explained:,} explained" + (f" ({kinds})" if kinds else "")
        if self.unexplained:
            told += f", {self.unexplained:,} not"
        return (
            f"rows {self.rows:,}, lost {self.lost:,}, duplicated {self.duplicated:,}, "
            f"changed {self.changed:,}, holes {told}"
        )

    def to_json(self) -> str:
        body = {
            "complete": self.is_complete,
            "rows": self.rows,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "changed": self.changed,
            "holes": self.holes,
            "unexplained": self.unexplained,
            "problems": [asdict(problem) for problem in self.problems],
            "partitions": [asdict(partition) for partition in self.partitions],
        }
        return json.dumps(body, indent=2)


def offsets_text(offsets: Iterable[int]) -> str:
    """Returns the first few offsets, for example `3, 7-9, ...`."""
    ranges: list[list[int]] = []
    for offset in sorted(set(offsets)):
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_NAMED_RANGES]]
    return ", ".join([*told, "..."] if len(ranges) > _NAMED_RANGES else told)


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
