"""Checks the histories of chaos runs on Spark:

PYTHONPATH=services:tests python -m chaoslab.spark_checker PATH...
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from chaoslab.verdict import KINDS, SHOWN_ANOMALIES
from tidelog.model.text import JsonObject
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import spark_session
from tidelog.process.command_help import OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from chaoslab.spark_checker.job import HistoryVerdict

_ELSEWHERE: Final = re.compile(r"^[a-z0-9+.-]+:/|[*?\[{]")
"""A path in another file system, or a pattern, which only Spark can look up."""
HISTORY_PATTERN: Final = "*history*.jsonl.gz"


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--output", help="Write all anomalies to this Delta table.")
@with_format
@click.option("--master", help="Spark's master (default: local[*]).")
@click.option("--remote", help="The address of a Spark Connect server: sc://HOST:PORT.")
def command(paths: tuple[str, ...], output: str | None, master: str | None, remote: str | None) -> None:
    """Find the anomalies in histories of chaos runs. Each of PATHS is a history file (history.jsonl.gz) or a
    directory that is searched for such files. The exit code is 1 if there is an anomaly.
    """
    files = history_files(paths)
    spark = spark_session("check histories", master=master, remote=remote)
    from chaoslab.spark_checker.job import check_histories

    console = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=None)
            found = check_histories(
                spark, files, output=output, said=lambda what: progress.update(task, description=what)
            )
    finally:
        spark.stop()
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps([_as_object(one) for one in found], indent=1))
    else:
        _show(found)
    sys.exit(any(not one.verdict.is_sound for one in found))


def history_files(paths: tuple[str, ...]) -> list[str]:
    """Returns the history files. Directories are searched, and a path that is not a local directory is used
    as it is.
    """
    files = []
    for path in paths:
        if not Path(path).is_dir():
            if not _ELSEWHERE.search(path) and not Path(path).exists():
                raise PipelineError(f"there is no file {path}; `make chaos` writes histories")
            files.append(path)
            continue
        inside = sorted(str(file) for file in Path(path).rglob(HISTORY_PATTERN))
        if not inside:
            raise PipelineError(f"there is no {HISTORY_PATTERN} in {path}; `make chaos` writes one")
        files += inside
    return files


def _as_object(one: HistoryVerdict) -> JsonObject:
    return {
        "path": one.path,
        "is_sound": one.verdict.is_sound,
        "looked_at": dict(one.verdict.counts),
        "kinds": dict(one.verdict.kinds),
        "anomalies": [anomaly._asdict() for anomaly in one.verdict.anomalies],
    }


def _show(found: list[HistoryVerdict]) -> None:
    console = Console(highlight=False)
    kinds = [kind for kind in KINDS if any(one.verdict.kinds[kind] for one in found)]
    counted = list(found[0].verdict.counts) if found else []
    if output_format() is OutputFormat.PLAIN:
        click.echo("\t".join(("history", *counted, *kinds, "verdict")))
        for one in found:
            numbers = [
                *(one.verdict.counts[name] for name in counted),
                *(one.verdict.kinds[k] for k in kinds),
            ]
            verdict = "no anomaly" if one.verdict.is_sound else "anomalies"
            click.echo("\t".join((one.path, *map(str, numbers), verdict)))
    else:
        console.print(_table(found, counted, kinds))
    for one in found:
        for anomaly in one.verdict.anomalies[:SHOWN_ANOMALIES]:
            place = f"{anomaly.topic}-{anomaly.partition} offset {anomaly.offset}"
            console.print(f"{anomaly.kind}: {place}: {anomaly.detail}", markup=False, soft_wrap=True)
    total = sum(one.verdict.kinds.total() for one in found)
    operations = sum(sum(one.verdict.counts.values()) - one.verdict.counts["acknowledged"] for one in found)
    console.print(f"{len(found)} histories, {operations:,} operations, {total:,} anomalies", soft_wrap=True)


def _table(found: list[HistoryVerdict], counted: list[str], kinds: list[str]) -> Table:
    table = Table(title="histories")
    table.add_column("history", overflow="fold")
    for name in (*counted, *kinds):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for one in found:
        counts = [f"{one.verdict.counts[name]:,}" for name in counted]
        anomalies = [f"[red]{count:,}[/]" if (count := one.verdict.kinds[kind]) else "" for kind in kinds]
        verdict = "[green]no anomaly" if one.verdict.is_sound else "[red]anomalies"
        table.add_row(escape(one.path), *counts, *anomalies, verdict)
    return table


def main() -> None:
    """Runs the command. A PipelineError becomes one line and exit code 1."""
    try:
        command()
    except PipelineError as error:
        sys.exit(f"tidelog: {error}")


if __name__ == "__main__":
    main()
