"""Prints tables: with borders and colours on a terminal, otherwise as tab-separated lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def is_terminal() -> bool:
    return sys.stdout.isatty()


def console() -> Console:
    """Returns a console on the current standard output, which tests replace."""
    return Console(highlight=False, soft_wrap=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Prints a table. A `#` before a column's name marks numbers, which are aligned to the right."""
    names = [column.removeprefix("#") for column in columns]
    if not is_terminal():
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join("" if cell is None else str(cell) for cell in row))
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column, name in zip(columns, names, strict=True):
        table.add_column(
            name,
            justify="right" if column.startswith("#") else "left",
            overflow="fold",
            no_wrap=column.startswith("#"),
        )
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console().print(table)


def print_heading(name: str, rest: str) -> None:
    """Prints a heading, on a terminal with `name` in bold. Neither text is interpreted as markup."""
    console().print(Text.assemble((name, "bold"), rest), soft_wrap=True)


def say(text: str) -> None:
    """Prints a result, in green on a terminal."""
    click.secho(text, fg="green" if is_terminal() else None)


def note(text: str) -> None:
    """Prints a note for people on standard error, apart from the data."""
    click.echo(text, err=True)
