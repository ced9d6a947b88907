"""Rules for column names and for merging two types of the same column, and the fields and types of JSON
records, counted so that columns can be made for them. The module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tidelog.model.text import JsonObject

DecodedValue: TypeAlias = Any
"""A value as a decoder returns it. Its type is known only from the schema, at run time."""
Fields: TypeAlias = dict[str, DecodedValue]
"""The fields of a decoded record, by name."""

KEPT_PREFIX: Final = "kafka_"
EVENT_DATE: Final = "event_date"
MAX_NAME_CHARACTERS: Final = 200
_NOT_IN_NAMES: Final = str.maketrans(dict.fromkeys(" ,;{}()\n\t\r=.`", "_"))


def column_name(field: str) -> str:
    """Returns the field's name with `_` in place of characters that tables do not allow."""
    return field.translate(_NOT_IN_NAMES)


def folded(name: str) -> str:
    """Returns the same text for all names that Spark considers equal. Spark compares names without case."""
    return name.upper().casefold().replace("i\N{COMBINING DOT ABOVE}", "i")


def name_problem(field: str, *, top_level: bool) -> str | None:
    """Returns the reason why no column can have the name of this field, or None."""
    if not field:
        return "has an empty name"
    if len(field) > MAX_NAME_CHARACTERS:
        return f"has a name of more than {MAX_NAME_CHARACTERS} characters"
    if not field.isprintable():
        return "has control characters in its name"
    if top_level and is_kept(folded(column_name(field))):
        return "has a name reserved for the archive's own columns"
    return None


def is_kept(name: str) -> bool:
    """Returns True for one of the archive's own columns."""
    return name.startswith(KEPT_PREFIX) or name == EVENT_DATE


def merged(known: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Merges the fields of both types. In other differences `known` wins, because the type of a table's
    column cannot change.
    """
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in known}
        names = {folded(name): name for name in fields}
        for field in new:
            name = names.setdefault(folded(field.name), field.name)
            fields[name] = merged(fields[name], field.type) if name in fields else field.type
        return pa.struct(list(fields.items()))
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(merged(known.value_type, new.value_type))
    if pa.types.is_map(known) and pa.types.is_map(new):
        return pa.map_(known.key_type, merged(known.item_type, new.item_type))
    return known


def sql_name(kind: pa.DataType) -> str:
    """Returns the short SQL name of the type."""
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_list(kind):
        return f"array<{sql_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{sql_name(kind.key_type)},{sql_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _SQL_NAMES.get(kind, str(kind))


_SQL_NAMES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


MAX_COLUMNS: Final = 2000
"""The maximum number of a table's columns, including nested ones. A map written as an object would make one
column for each key.
"""
MAX_DEPTH: Final = 16
_MAX_NAMES_NOTED: Final = 4 * MAX_COLUMNS
_MAX_ELEMENTS_NOTED: Final = 1000
_INT64: Final = range(-(1 << 63), 1 << 63)

_NUMBERS: Final = ("bigint", "huge", "double")
_PREFERENCE: Final = ("struct", "array", "number", "string", "boolean")
"""The order between kinds that are equally frequent: the kind that holds more values wins."""


class Shape:
    """The frequency of each kind of a field, and the shapes inside objects and arrays."""

    __slots__ = ("element", "fields", "kinds")

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.fields: dict[str, Shape] = {}
        self.element: Shape | None = None

    def observe(self, value: DecodedValue, depth: int = 0) -> None:
        """Counts a value. Null counts as nothing, and levels below MAX_DEPTH are ignored."""
        if value is None or depth > MAX_DEPTH:
            return
        kind = _kind_of(value)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind == "struct":
            for name, item in value.items():
                self._field(name).observe(item, depth + 1)
        elif kind == "array":
            self.element = self.element or Shape()
            for item in value[:_MAX_ELEMENTS_NOTED]:
                self.element.observe(item, depth + 1)

    def add(self, other: Shape) -> None:
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
        for name, shape in other.fields.items():
            self._field(name).add(shape)
        if other.element is not None:
            self.element = self.element or Shape()
            self.element.add(other.element)

    def count(self) -> int:
        return sum(self.kinds.values())

    def to_json(self) -> JsonObject:
        element = None if self.element is None else self.element.to_json()
        return {"k": self.kinds, "f": {n: s.to_json() for n, s in self.fields.items()}, "e": element}

    @classmethod
    def from_json(cls, plain: JsonObject) -> Shape:
        shape = cls()
        shape.kinds = dict(plain["k"])
        shape.fields = {name: cls.from_json(inner) for name, inner in plain["f"].items()}
        shape.element = None if plain["e"] is None else cls.from_json(plain["e"])
        return shape

    def _field(self, name: str) -> Shape:
        found = self.fields.get(name)
        if found is None:
            found = Shape()
            if len(self.fields) < _MAX_NAMES_NOTED:
                self.fields[name] = found
        return found


def sum_of(shapes: Iterable[Shape]) -> Shape:
    total = Shape()
    for shape in shapes:
        total.add(shape)
    return total


def _kind_of(value: DecodedValue) -> str:
    if type(value) is int:
        return "bigint" if value in _INT64 else "huge"
    return _KINDS[type(value)]


_KINDS: Final = {bool: "boolean", float: "double", str: "string", dict: "struct", list: "array"}


def widened(known: pa.DataType, shape: Shape) -> pa.DataType:
    """Returns the record type `known` with added columns for the other fields of `shape`. Known columns do
    not change.

    The most frequent kind wins, and records with other kinds will not fit. A field that is always null, or an
    empty object or array, gets no column. At MAX_COLUMNS, no more columns are added; the most frequent fields
    come first.
    """
    budget = _Budget(MAX_COLUMNS - _columns_of(known))
    return _widened_struct(known, shape, budget, 0)


class _Budget:
    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> bool:
        taken = self._left > 0
        self._left -= taken
        return taken

    def give_back(self) -> None:
        self._left += 1


def _columns_of(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(1 + _columns_of(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _columns_of(kind.value_type)
    if pa.types.is_map(kind):
        return _columns_of(kind.item_type)
    return 0


def _widened_struct(known: pa.DataType, shape: Shape, budget: _Budget, depth: int) -> pa.DataType:
    fields = {field.name: field.type for field in known}
    taken = {folded(name) for name in fields}
    made: dict[str, Shape] = {}
    # The sort is stable, so fields of equal frequency keep their order.
    for field, inner in sorted(shape.fields.items(), key=lambda pair: -pair[1].count()):
        name = field if field in fields else column_name(field)
        if name in fields:
            fields[name] = _widened(fields[name], inner, budget, depth + 1)
            continue
        if name_problem(field, top_level=depth == 0) or folded(name) in taken:
            continue
        # A level's own columns precede the columns inside them.
        if inner.kinds and budget.take():
            made[name] = inner
            taken.add(folded(name))
    for name, inner in made.items():
        kind = _new(inner, budget, depth + 1)
        if kind is None:
            budget.give_back()
        else:
            fields[name] = kind
    return pa.struct(_in_sighting_order(known, shape, fields))


def _in_sighting_order(
    known: pa.DataType, shape: Shape, fields: dict[str, pa.DataType]
) -> list[tuple[str, pa.DataType]]:
    names = [field.name for field in known]
    names += [name for field in shape.fields if (name := column_name(field)) in fields]
    return [(name, fields[name]) for name in dict.fromkeys(names)]


def _widened(known: pa.DataType, shape: Shape, budget: _Budget, depth: int) -> pa.DataType:
    if pa.types.is_struct(known):
        return _widened_struct(known, shape, budget, depth)
    if pa.types.is_list(known) and shape.element is not None:
        return pa.list_(_widened(known.value_type, shape.element, budget, depth + 1))
    return known


def _new(shape: Shape, budget: _Budget, depth: int) -> pa.DataType | None:
    """Returns the column for a new field, or None if its type is unknown."""
    counts = {kind: count for kind, count in shape.kinds.items() if kind not in _NUMBERS}
    numbers = sum(shape.kinds.get(kind, 0) for kind in _NUMBERS)
    if numbers:
        counts["number"] = numbers
    if not counts or depth > MAX_DEPTH:
        return None
    kind = max(counts, key=lambda name: (counts[name], -_PREFERENCE.index(name)))
    return _MAKERS[kind](shape, budget, depth)


def _new_struct(shape: Shape, budget: _Budget, depth: int) -> pa.DataType | None:
    made = _widened_struct(pa.struct([]), shape, budget, depth)
    return made if made.num_fields else None


def _new_array(shape: Shape, budget: _Budget, depth: int) -> pa.DataType | None:
    element = None if shape.element is None else _new(shape.element, budget, depth + 1)
    return None if element is None else pa.list_(element)


def _new_number(shape: Shape, _budget: _Budget, _depth: int) -> pa.DataType:
    if "double" in shape.kinds:
        return pa.float64()
    # A few integers that are too large do not make the column a decimal for all. They will not fit.
    is_huge = shape.kinds.get("huge", 0) > shape.kinds.get("bigint", 0)
    return pa.decimal128(38, 0) if is_huge else pa.int64()


_MAKERS: Final[dict[str, Callable[[Shape, _Budget, int], pa.DataType | None]]] = {
    "struct": _new_struct,
    "array": _new_array,
    "number": _new_number,
    "string": lambda *_: pa.string(),
    "boolean": lambda *_: pa.bool_(),
}
