"""The JSON document of a command: what it would print for people, as one value. No I/O.

A command has tables, facts and results. A heading begins a part, and what follows belongs to it. The document
is the simplest value that holds them:

- the list of rows, if there is one table without a name
- the result, if there is one, or the list of results
- one object with the facts, the tables by name and the results, in all other cases
- a list of such objects, one for each heading, if there are headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.model.text import JsonObject

ROWS: Final = "rows"
"""The name of a table without a name, beside other contents."""
_NOT_IN_A_KEY: Final = re.compile(r"[^a-z0-9]+")


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
