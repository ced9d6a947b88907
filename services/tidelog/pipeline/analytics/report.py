"""The report: one HTML file that contains its pictures."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.pipeline.analytics import pictures
from tidelog.pipeline.analytics.job import Analysis
from tidelog.pipeline.analytics.lag import DRAINING, GROWING, STALLED, STATES
from tidelog.pipeline.analytics.retention import AT_RISK, LOST, SAFE, VERDICTS
from tidelog.pipeline.analytics.skew import PartitionLoad

MOST_ROWS: Final = 50
STYLE: Final = (
    "body{font:15px sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}.bad{color:#c0392b}.good{color:#1e8449}.soft{color:#777}"
    "tr.bad td{background:#fdecea}tr.warn td{background:#fef5e7}pre{background:#f4f4f4;padding:1em}"
)


def summary(analysis: Analysis) -> str:
    """Returns the summary line of a run."""
    episodes = analysis.rows["isr_episodes"]
    states = Counter(row["state"] for row in analysis.rows["lag_trends"])
    verdicts = Counter(row["verdict"] for row in analysis.rows["retention_forecasts"])
    proposal = analysis.proposal
    plan = f"{len(proposal.moves)} moves proposed" if proposal.refused is None else "no plan"
    return (
        f"{len(episodes)} ISR episodes ({sum(row['is_open'] for row in episodes)} open); lags: "
        f"{states[GROWING]} growing, {states[STALLED]} stalled, {states[DRAINING]} draining; retention: "
        f"{verdicts[LOST]} lost, {verdicts[AT_RISK]} at risk; {plan}"
    )


def page(analysis: Analysis, loads: Sequence[PartitionLoad], title: str, run_ms: int) -> str:
    """Returns the whole report."""
    span = f"{at_text(analysis.start_ms)} to {at_text(analysis.end_ms)}"
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(title)}</h1><p><b>{html.escape(summary(analysis))}</b></p>",
        f"<p class=soft>{span} UTC, {analysis.facts:,} samples, one each "
        f"{analysis.brokers.interval_ms / 1000:g} s; written {at_text(run_ms)}.</p>",
        *_isr(analysis),
        *_lag(analysis),
        *_retention(analysis),
        *_brokers(analysis),
        *_skew(analysis, loads),
        *_plan(analysis),
    ]
    return "\n".join(parts) + "\n"


def _isr(analysis: Analysis) -> Iterable[str]:
    episodes = sorted(analysis.rows["isr_episodes"], key=lambda row: (not row["is_open"], -row["seconds"]))
    yield "<h2>ISR episodes</h2>"
    # Expands are counted instead of shrinks, because no leader counts the removal of a dead broker by the
    # controller.
    counted = sum(row["isr_expands"] for row in analysis.brokers.rows)
    seen = sum(row["expands"] for row in episodes)
    yield (
        f"<p>Leaders counted {counted} returns of replicas to an ISR, the samples show {seen}. "
        "If the leaders counted more, some episodes were shorter than the scrape interval.</p>"
    )
    yield _image(
        pictures.isr_timeline(episodes, analysis.start_ms, analysis.end_ms), "ISR episodes over time"
    )
    if not episodes:
        yield "<p class=good>No partition was seen out of sync.</p>"
        return
    heads = ("partition", "began", "lasted", "least in sync", "under min ISR", "leaders", "silent brokers")
    rows = [
        (
            "bad" if row["under_min_isr_s"] or row["is_open"] else "",
            f"{row['topic']}-{row['partition']}",
            at_text(row["began_ms"]),
            duration_text(row["seconds"]) + (", not over" if row["is_open"] else ""),
            f"{row['least_in_sync']} of {row['replicas']}",
            duration_text(row["under_min_isr_s"]) if row["under_min_isr_s"] else "-",
            " then ".join(map(str, row["leaders"])) or "-",
            ", ".join(map(str, row["silent_brokers"])) or "-",
        )
        for row in episodes[:MOST_ROWS]
    ]
    yield _table(heads, rows, len(episodes))


def _lag(analysis: Analysis) -> Iterable[str]:
    yield "<h2>Lag, and when it ends</h2>"
    trends = analysis.rows["lag_trends"]
    if not trends:
        yield "<p>No lag of a group was reported.</p>"
        return
    yield _image(pictures.lag_lines(analysis.lag_history, analysis.start_ms, analysis.end_ms), "lag by group")
    ordered = sorted(trends, key=lambda row: (STATES.index(row["state"]), -row["lag"]))
    colours = {STALLED: "bad", GROWING: "warn"}
    heads = (
        "group", "partition", "state", "lag", "greatest", "produced / s", "consumed / s", "drained in", "at",
    )  # fmt: skip
    rows = [
        (
            colours.get(row["state"], ""),
            row["consumer_group"],
            f"{row['topic']}-{row['partition']}",
            row["state"],
            row["lag"],
            row["greatest_lag"],
            rate_text(row["produced_per_s"]),
            rate_text(row["consumed_per_s"]),
            duration_text(row["drain_s"]),
            "-" if row["drained_ms"] is None or not row["lag"] else at_text(row["drained_ms"]),
        )
        for row in ordered[:MOST_ROWS]
    ]
    yield _table(heads, rows, len(ordered))


def _retention(analysis: Analysis) -> Iterable[str]:
    yield "<h2>Retention: what is deleted before it is read</h2>"
    forecasts = analysis.rows["retention_forecasts"]
    yield _image(pictures.retention_bars(forecasts), "time until unread records are deleted")
    told = [row for row in forecasts if row["verdict"] != SAFE or row["loses_in_s"] is not None]
    if not told:
        yield "<p class=good>At the current rates, no group loses a record.</p>"
        return
    far = float("inf")
    told.sort(
        key=lambda row: (
            VERDICTS.index(row["verdict"]),
            far if row["loses_in_s"] is None else row["loses_in_s"],
        )
    )
    colours = {LOST: "bad", AT_RISK: "warn"}
    heads = ("group", "partition", "verdict", "unread", "lost", "loses in", "at", "all read in")
    rows = [
        (
            colours.get(row["verdict"], ""),
            row["consumer_group"],
            f"{row['topic']}-{row['partition']}",
            row["verdict"],
            row["unread"],
            row["lost"],
            duration_text(row["loses_in_s"]),
            "-" if row["loses_ms"] is None else at_text(row["loses_ms"]),
            duration_text(row["drain_s"]),
        )
        for row in told[:MOST_ROWS]
    ]
    yield _table(heads, rows, len(told))


def _brokers(analysis: Analysis) -> Iterable[str]:
    yield "<h2>Brokers</h2>"
    heads = ("broker", "alive", "silent for", "ISR shrinks", "ISR expands", "disk free", "disk full in")
    rows = [
        (
            "" if row["is_alive"] else "bad",
            row["broker"],
            "yes" if row["is_alive"] else "no",
            duration_text(row["silent_s"]) if row["silent_s"] else "-",
            row["isr_shrinks"],
            row["isr_expands"],
            bytes_text(row["disk_free_bytes"]),
            duration_text(row["disk_full_s"]),
        )
        for row in analysis.brokers.rows
    ]
    yield _table(heads, rows, len(rows))


def _skew(analysis: Analysis, loads: Sequence[PartitionLoad]) -> Iterable[str]:
    yield "<h2>Skew of partitions</h2>"
    yield _image(
        pictures.skew_bars(loads, [skew.topic for skew in analysis.skews]), "records a second by partition"
    )
    heads = (
        "topic",
        "partitions",
        "bytes",
        "records / s",
        "greatest bytes / mean",
        "greatest rate / mean",
        "hottest",
    )
    rows = [
        (
            "warn" if skew.rate_over_mean >= 2 and skew.records_per_s else "",
            skew.topic,
            skew.partitions,
            bytes_text(skew.bytes),
            rate_text(skew.records_per_s),
            f"{skew.bytes_over_mean:.2f}",
            f"{skew.rate_over_mean:.2f}",
            skew.hottest_partition,
        )
        for skew in analysis.skews[:MOST_ROWS]
    ]
    yield _table(heads, rows, len(analysis.skews))


def _plan(analysis: Analysis) -> Iterable[str]:
    proposal = analysis.proposal
    yield "<h2>Proposed reassignment</h2>"
    if proposal.refused is not None:
        yield f"<p class=bad>No plan: {html.escape(proposal.refused)}.</p>"
        return
    yield _image(pictures.broker_bars(proposal), "brokers now and with the plan")
    if proposal.left_out:
        yield (
            f"<p class=bad>{proposal.left_out} partitions are left out, because the metrics do not name "
            "all their "
            "replicas; use --bootstrap-server to ask the cluster.</p>"
        )
    if not proposal.moves:
        yield "<p class=good>The brokers are as balanced as a plan could make them.</p>"
        return
    said = []
    for name, label in (
        ("bytes", "bytes stored"),
        ("written_bytes_per_s", "written"),
        ("led_bytes_per_s", "led"),
    ):
        before, after = proposal.unevenness(name)
        said.append(f"{label} {before:.2f} to {after:.2f}")
    yield (
        f"<p>{len(proposal.moves)} partitions, {bytes_text(proposal.copied_bytes)} copied. "
        f"The most loaded broker over the mean: {', '.join(said)}.</p>"
    )
    rows = [
        ("", f"{m.topic}-{m.partition}", ", ".join(map(str, m.before)), ", ".join(map(str, m.after)))
        for m in proposal.moves[:MOST_ROWS]
    ]
    yield _table(("partition", "replicas", "planned"), rows, len(proposal.moves))
    yield (
        "<pre>kafka-reassign-partitions.sh --bootstrap-server HOST:PORT --execute \\\n"
        "    --throttle 50000000 --reassignment-json-file reassignment.json</pre>"
    )


def at_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration_text(seconds: float | None) -> str:
    """Returns a duration such as `2 h 5 min`, or `-` if it is infinite or unknown."""
    if seconds is None:
        return "-"
    for unit, size, small, small_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            return f"{int(whole):,} {unit} {int(rest // small_size)} {small}"
    return f"{seconds:.3g} s"


def bytes_text(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"


def rate_text(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.1f}"


def _image(picture: bytes | None, what: str) -> str:
    if picture is None:
        return ""
    data = base64.b64encode(picture).decode()
    return f'<img alt="{html.escape(what)}" src="data:image/png;base64,{data}">'


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]], total: int) -> str:
    """Renders a table. The first cell of a row is its CSS class."""
    lines = ["<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for colour, *cells in rows:
        shown = "".join(
            f"<td class=n>{cell:,}</td>" if isinstance(cell, int) else f"<td>{html.escape(str(cell))}</td>"
            for cell in cells
        )
        lines.append(f"<tr class={colour}>{shown}</tr>" if colour else f"<tr>{shown}</tr>")
    lines.append("</table>")
    if total > len(rows):
        lines.append(f"<p class=soft>The table has {total - len(rows)} more rows.</p>")
    return "\n".join(lines)
