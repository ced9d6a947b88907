"""Prints what commands have to say, in the format that --format selects. No command prints in another way.

- `table`, the default on a terminal: tables with borders, and colours on a terminal
- `plain`, the default otherwise: tab-separated lines
- `json`: one document, which `finish` prints at the command's end

A command has tables, facts and results. A heading begins a part, and what follows belongs to it. The document
is the simplest value that holds them:

- the list of rows, if there is one table without a name
- the result, if there is one, or the list of results
- one object with the facts, the tables by name and the results, in all other cases
- a list of such objects, one for each heading, if there are headings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click

from tidelog.model.text import JsonObject, counted, printable
from tidelog.process.command_help import OutputFormat, format_option, is_terminal, output_format

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["OutputFormat", "Shown", "counted", "format_option", "is_terminal", "output_format"]

_DOCUMENT_KEY: Final = "tidelog.document"
_LEAST_WIDTH: Final = 80
_UNLIMITED_WIDTH: Final = 100_000
ROWS: Final = "rows"
"""The name of a table without a name, beside other contents."""
_NOT_IN_A_KEY: Final = re.compile(r"[^a-z0-9]+")


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


@dataclass(frozen=True, slots=True)
class Shown:
    """A cell whose text for people differs from its value for programs."""

    text: str
    value: object

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class _Part:
    """The contents below one heading, or before the first one."""

    facts: JsonObject = field(default_factory=dict)
    tables: dict[str, list[JsonObject]] = field(default_factory=dict)
    results: list[JsonObject] = field(default_factory=list)
    has_named_table: bool = False
    is_list_of_results: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.facts or self.tables or self.results)

    def as_object(self) -> JsonObject:
        found: JsonObject = {**self.facts, **self.tables}
        if len(self.results) == 1 and not self.is_list_of_results:
            return found | self.results[0]
        return found | ({"results": self.results} if self.results else {})

    def value(self) -> object:
        if not self.facts and not self.results and len(self.tables) == 1 and not self.has_named_table:
            return next(iter(self.tables.values()))
        if self.results and not self.facts and not self.tables:
            is_one = len(self.results) == 1 and not self.is_list_of_results
            return self.results[0] if is_one else self.results
        return self.as_object()


class JsonDocument:
    """Collects what a command says. `value` returns the document."""

    def __init__(self) -> None:
        self._parts = [_Part()]

    @property
    def is_empty(self) -> bool:
        return len(self._parts) == 1 and self._parts[0].is_empty

    def add_table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], name: str | None) -> None:
        part = self._parts[-1]
        keys = [key_of(column) for column in columns]
        are_numbers = [column.startswith("#") for column in columns]
        key = name or ROWS
        number = 2
        while key in part.tables:
            key, number = f"{name or ROWS}_{number}", number + 1
        part.has_named_table |= name is not None
        part.tables[key] = [
            {
                key: value_of(cell, is_number=is_number)
                for key, cell, is_number in zip(keys, row, are_numbers, strict=True)
            }
            for row in rows
        ]

    def add_heading(self, facts: Mapping[str, object]) -> None:
        self._parts.append(_Part({name: value_of(value) for name, value in facts.items()}))

    def add_facts(self, facts: Mapping[str, object]) -> None:
        """Adds facts to the part of the last heading."""
        self._parts[-1].facts |= {name: value_of(value) for name, value in facts.items()}

    def add_result(self, message: str, facts: Mapping[str, object], *, is_one_of_many: bool) -> None:
        part = self._parts[-1]
        part.results.append({"message": message} | {name: value_of(value) for name, value in facts.items()})
        part.is_list_of_results |= is_one_of_many

    def value(self) -> object:
        first, *others = self._parts
        if not others:
            return [] if first.is_empty else first.value()
        sections = [part.as_object() for part in others]
        return sections if first.is_empty else first.as_object() | {"sections": sections}


def key_of(column: str) -> str:
    """Returns a column's key: its name in snake case, or the text after `|`.

    `#p99.9 ms` becomes `p99_9_ms`, `MiB/s` becomes `mib_per_s`, and `#oldest|oldest_age_ms` `oldest_age_ms`.
    """
    name, _, key = column.partition("|")
    words = (key or name).removeprefix("#").lower().replace("/", " per ")
    return _NOT_IN_A_KEY.sub("_", words).strip("_") or "note"


def value_of(cell: object, *, is_number: bool = False) -> object:
    """Returns the JSON value of a cell. With `is_number`, the text of a number becomes the number."""
    match cell:
        case Shown():
            return value_of(cell.value, is_number=is_number)
        case None | bool() | int() | float():
            return cell
        case str():
            return _number(cell) if is_number else cell
        case Mapping():
            return {str(name): value_of(value) for name, value in cell.items()}
        case list() | tuple() if not is_named(cell):
            return [value_of(each) for each in cell]
        case _:
            return str(cell)


def is_named(cell: list[object] | tuple[object, ...]) -> bool:
    """Returns whether this is a named tuple, such as an address, which has a text of its own."""
    return hasattr(cell, "_fields")


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
