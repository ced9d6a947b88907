"""Prints what commands have to say, in the format that --format selects.

- `table`, the default on a terminal: tables with borders, and colours on a terminal
- `plain`, the default otherwise: tab-separated lines
- `json`: one document, which `finish` prints at the command's end (see `json_document`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli.json_document import JsonDocument, Shown, is_named
from tidelog.model.text import counted, printable
from tidelog.process.command_help import OutputFormat, format_option, is_terminal, output_format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["OutputFormat", "Shown", "counted", "format_option", "is_terminal", "output_format"]

_DOCUMENT_KEY: Final = "tidelog.document"
_LEAST_WIDTH: Final = 80
_UNLIMITED_WIDTH: Final = 100_000


def console() -> Console:
    """Returns a console on the current standard output, which tests replace."""
    from rich.console import Console  # loads a tenth of a second of modules

    return Console(highlight=False, soft_wrap=False)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    name: str | None = None,
) -> None:
    """Prints a table.

    A `#` before a column's name marks numbers, which are aligned to the right. A cell that is a list of
    values is printed with commas. `name` is the table's key in JSON; without it, a table that is alone is the
    whole document. A column's key is its name in snake case, or another one after `|`.
    """
    if (document := _document()) is not None:
        document.add_table(columns, rows, name)
        return
    names = [column.removeprefix("#").partition("|")[0] for column in columns]
    if output_format() is OutputFormat.PLAIN:
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(map(_text, row)))
        return
    _print_rich(_rich_table(columns, names, rows, title))


def _rich_table(
    columns: Sequence[str], names: Sequence[str], rows: Iterable[Sequence[object]], title: str | None
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

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
        table.add_row(*(Text(_text(cell)) for cell in row))
    return table


def _print_rich(table: Table) -> None:
    target = console()
    if not is_terminal():
        from rich.measure import Measurement

        # Without a terminal there is no width to respect, so no cell is folded.
        unlimited = target.options.update(max_width=_UNLIMITED_WIDTH)
        target.width = max(_LEAST_WIDTH, Measurement.get(target, unlimited, table).maximum)
    target.print(table)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, (list, tuple)) and not is_named(cell):
        return printable(",".join(map(str, cell)))
    return printable(str(cell))


def print_heading(name: str, rest: str, **facts: object) -> None:
    """Prints a heading, on a terminal with `name` in bold. Neither text is interpreted as markup.

    In JSON, it begins an object with these facts, or with the two texts if there are none. The tables that
    follow belong to the object.
    """
    if (document := _document()) is not None:
        document.add_heading(facts or {"name": name, "description": rest.strip()})
        return
    name = printable(name)
    click.echo((click.style(name, bold=True) if is_terminal() else name) + printable(rest, kept="\n"))


def add_facts(**facts: object) -> None:
    """Adds facts to the JSON document. The other formats show them in their own way, or not at all."""
    if (document := _document()) is not None:
        document.add_facts(facts)


def say(text: str, *, is_one_of_many: bool = False, **facts: object) -> None:
    """Prints a result, in green on a terminal.

    In JSON, it is an object with `message` and the facts. With `is_one_of_many`, the command can have several
    results, so its document is always a list.
    """
    if (document := _document()) is not None:
        document.add_result(text, facts, is_one_of_many=is_one_of_many)
        return
    click.secho(printable(text, kept="\n"), fg="green" if is_terminal() else None)


def progress(text: str) -> None:
    """Prints a step of a command that takes long: as a result, but with JSON as a note, because the document
    has only the results and appears at the end.
    """
    if _document() is None:
        say(text)
    else:
        note(text)


def note(text: str) -> None:
    """Prints a note for people on standard error, apart from the data."""
    click.echo(printable(text, kept="\n"), err=True)


def finish(*, has_failed: bool = False) -> None:
    """Prints the JSON document of the command, if --format json asks for it.

    A command that has failed prints what it had to say before, or nothing.
    """
    document = _document()
    if document is None or (has_failed and document.is_empty):
        return
    click.echo(json.dumps(document.value(), indent=2, ensure_ascii=False))


def begin_document() -> None:
    """Begins a new document, because the command runs again (--watch)."""
    click.get_current_context().meta.pop(_DOCUMENT_KEY, None)


def _document() -> JsonDocument | None:
    """Returns the document of the running command, or None if its format is not JSON."""
    context = click.get_current_context(silent=True)
    if context is None or output_format() is not OutputFormat.JSON:
        return None
    document: JsonDocument = context.meta.setdefault(_DOCUMENT_KEY, JsonDocument())
    return document
