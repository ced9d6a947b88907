"""The worst cases of each kind, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tidelog.pipeline.analytics.job import Analysis
from tidelog.pipeline.analytics.lag import GONE, READ, STATES
from tidelog.pipeline.analytics.report import at_text, bytes_text, duration_text, rate_text
from tidelog.pipeline.analytics.retention import SAFE, VERDICTS

MOST_ROWS: Final = 10
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def tables(analysis: Analysis) -> Iterator[Table]:
    """Returns (title, columns, rows) for each table that has rows."""
    for table in (_episodes(analysis), _lags(analysis), _forecasts(analysis), _brokers(analysis)):
        if table[2]:
            yield table


def _episodes(analysis: Analysis) -> Table:
    rows = sorted(analysis.rows["isr_episodes"], key=lambda row: (not row["is_open"], -row["seconds"]))
    shown: list[tuple[str, ...]] = [
        (
            f"{row['topic']}-{row['partition']}",
            at_text(row["began_ms"]),
            duration_text(row["seconds"]) + (", not over" if row["is_open"] else ""),
            f"{row['least_in_sync']} of {row['replicas']}",
            ", ".join(map(str, row["silent_brokers"])) or "-",
        )
        for row in rows[:MOST_ROWS]
    ]
    columns = ("partition", "began", "lasted", "in sync", "silent brokers")
    return f"ISR episodes: {len(rows)}", columns, shown


def _lags(analysis: Analysis) -> Table:
    rows = [row for row in analysis.rows["lag_trends"] if row["state"] not in (READ, GONE)]
    rows.sort(key=lambda row: (STATES.index(row["state"]), -row["lag"]))
    shown: list[tuple[str, ...]] = [
        (
            row["consumer_group"],
            f"{row['topic']}-{row['partition']}",
            row["state"],
            f"{row['lag']:,}",
            f"{rate_text(row['produced_per_s'])} / {rate_text(row['consumed_per_s'])}",
            duration_text(row["drain_s"]),
        )
        for row in rows[:MOST_ROWS]
    ]
    columns = ("group", "partition", "state", "lag", "produced / consumed a second", "drained in")
    return f"Lags: {len(rows)}", columns, shown


def _forecasts(analysis: Analysis) -> Table:
    rows = [row for row in analysis.rows["retention_forecasts"] if row["verdict"] != SAFE]
    rows.sort(key=lambda row: (VERDICTS.index(row["verdict"]), row["loses_in_s"] or 0))
    shown: list[tuple[str, ...]] = [
        (
            row["consumer_group"],
            f"{row['topic']}-{row['partition']}",
            row["verdict"],
            f"{row['unread']:,}",
            f"{row['lost']:,}",
            duration_text(row["loses_in_s"]),
        )
        for row in rows[:MOST_ROWS]
    ]
    return "Retention", ("group", "partition", "verdict", "unread", "lost", "loses in"), shown


def _brokers(analysis: Analysis) -> Table:
    now = {load.broker: load for load in analysis.proposal.before}
    planned = {load.broker: load for load in analysis.proposal.after}
    shown: list[tuple[str, ...]] = [
        (
            str(broker),
            f"{now[broker].replicas} -> {planned[broker].replicas}",
            f"{now[broker].leaders} -> {planned[broker].leaders}",
            f"{bytes_text(now[broker].bytes)} -> {bytes_text(planned[broker].bytes)}",
            f"{bytes_text(now[broker].led_bytes_per_s)} -> {bytes_text(planned[broker].led_bytes_per_s)}",
        )
        for broker in sorted(now)
        if broker in planned
    ]
    plan = analysis.proposal.refused or f"{len(analysis.proposal.moves)} partitions"
    return f"Plan: {plan}", ("broker", "replicas", "preferred leaders", "stored", "led a second"), shown
