"""`tidelog pipeline export-segments`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from tidelog.pipeline.commands.options import pairs
from tidelog.process.command_help import DescribedCommand, OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from tidelog.pipeline.segments.export import ExportSummary


@click.command(
    "export-segments", cls=DescribedCommand, examples=("tidelog pipeline export-segments data --to exported",)
)
@click.argument("log_dirs", nargs=-1, required=True, metavar="LOG_DIR...")
@click.option("--to", "target", required=True, metavar="PATH|URI", help="A directory or s3://BUCKET/PREFIX.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="A topic to export; repeatable; default: all but internal topics.",
)
@click.option(
    "--verify", "verifies_all", is_flag=True, help="Compare files that exist by their contents, too."
)
@click.option(
    "--accept-loss", is_flag=True, help="Continue although offsets were deleted before this export."
)
@click.option(
    "--source-option", multiple=True, metavar="KEY=VALUE", help="A setting of the source's object store."
)
@click.option(
    "--target-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the target's object store: endpoint_override, region, access_key, secret_key...",
)
@with_format
def command(**options: Any) -> None:  # see Options
    """Copy closed segments with indexes and checkpoints to a directory or an object store.

    LOG_DIR is a broker's data directory, a copy of it, or a directory above several brokers' data
    directories. Of a partition's replicas, the most complete one is copied. Files that already exist at the
    target are kept, so run the command regularly, before retention deletes segments. Each file is read back
    and compared by size and CRC.
    """
    from tidelog.pipeline.segments.export import ExportSettings, export_segments, files_to_come, source_logs
    from tidelog.pipeline.segments.storage import Storage, WritableStorage

    source = Storage(pairs(options["source_option"], "--source-option"))
    log_dirs, target, chosen = options["log_dirs"], options["target"], list(options["topics"]) or None
    total = files_to_come(source_logs(source, log_dirs, chosen))
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("exporting", total=total)

        def on_bytes(path: str, count: int) -> None:
            progress.update(task, advance=count, description="/".join(path.rsplit("/", 2)[-2:]))

        settings = ExportSettings(
            source,
            WritableStorage(pairs(options["target_option"], "--target-option")),
            verifies_all=options["verifies_all"],
            accepts_loss=options["accept_loss"],
            on_bytes=on_bytes,
        )
        summary = export_segments(settings, log_dirs, chosen, target)
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps(_as_json(summary)))
    else:
        _print(summary, target)


def _as_json(summary: ExportSummary) -> dict[str, object]:
    return {
        "copied_files": summary.copied_files,
        "copied_bytes": summary.copied_bytes,
        "kept_files": summary.kept_files,
        "removed_files": summary.removed_files,
        "partitions": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "end_offset": end,
                "lost": [list(lost) for lost in summary.lost.get(place, ())],
            }
            for place, end in sorted(summary.ends.items())
        ],
    }


def _print(summary: ExportSummary, target: str) -> None:
    console = Console(highlight=False)
    if output_format() is OutputFormat.TABLE:
        table = Table(
            "topic", "partition", "exported to offset", "lost before", box=None, header_style="bold cyan"
        )
        for place, end in sorted(summary.ends.items()):
            lost = ", ".join(f"{start}-{stop - 1}" for start, stop in summary.lost.get(place, ()))
            table.add_row(place.topic, str(place.partition), str(end), f"[red]{lost}[/red]" if lost else "")
        console.print(table)
    click.echo(
        f"{target}: {len(summary.ends)} partition{'s' if len(summary.ends) != 1 else ''},"
        f" {summary.copied_files} files copied ({summary.copied_bytes} bytes, each file read back),"
        f" {summary.kept_files} existed, {summary.removed_files} removed after compaction"
    )
