"""`tidelog pipeline maintain`."""

from __future__ import annotations

import json
from typing import Final

import click
from rich.console import Console

from tidelog.pipeline.commands.archive import Size, pairs
from tidelog.process.command_help import DescribedCommand
from tidelog.process.output_format import OutputFormat, output_format, with_format

_MIN_KEEP_HOURS: Final = 1.0


@click.command(
    "maintain",
    cls=DescribedCommand,
    examples=("tidelog pipeline maintain tables/flights --target-file-size 256m",),
)
@click.argument("table", metavar="PATH")
@click.option("--target-file-size", type=Size(), default="128m", show_default=True)
@click.option(
    "--keep-hours",
    type=click.FloatRange(min=_MIN_KEEP_HOURS),
    default=168.0,
    show_default=True,
    help="Keep files that versions of this period need; longer than any job that reads the table.",
)
@click.option(
    "--optimize/--no-optimize", "optimizes", default=True, help="Compact small files into large ones."
)
@click.option("--vacuum/--no-vacuum", "vacuums", default=True, help="Delete files that no version needs.")
@click.option("--master", help="Spark's master; default: local[*], or the one of spark-submit.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
@with_format
def command(
    table: str,
    target_file_size: int,
    keep_hours: float,
    optimizes: bool,
    vacuums: bool,
    master: str | None,
    settings: tuple[str, ...],
) -> None:
    """Compact small files of an archive's table into large ones, and delete files that no version needs.

    Rows and the ledger do not change. A running archive does this itself with --maintain-every. While an
    archive writes to a Delta table on a plain volume, no other process may maintain the table.
    """
    from tidelog.pipeline.session import spark_session
    from tidelog.pipeline.tables.archive_table import table_format_of
    from tidelog.pipeline.tables.maintenance import MaintenanceSettings, maintain

    table_format_of(table)  # raises NoTableError before Spark starts
    wanted = MaintenanceSettings(target_file_size, keep_hours, optimizes, vacuums)
    console = Console(stderr=True)
    with console.status(f"maintaining {table}") as status:
        spark = spark_session(f"maintain {table}", master=master, settings=pairs(settings, "--set"))
        try:
            summary = maintain(
                spark,
                table,
                wanted,
                on_pack=lambda done, of: status.update(f"maintaining {table}: {done} of {of} packs of files"),
            )
        finally:
            spark.stop()
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps(summary.as_dict()))
        return
    click.echo(
        f"{summary.table}: {summary.packed} small files became {summary.made}, "
        f"{summary.removed} unneeded files were deleted, {summary.seconds:.1f} s"
    )
