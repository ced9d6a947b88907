"""Rules for column names, and for merging two types of the same column. The module does no I/O."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pyarrow as pa

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
