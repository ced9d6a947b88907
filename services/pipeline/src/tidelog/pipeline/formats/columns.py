"""Names of columns: which a field may have, and how two types of the same column become one. Pure."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

KEPT_PREFIX: Final = "kafka_"
EVENT_DATE: Final = "event_date"
MAX_NAME_CHARACTERS: Final = 200
_NOT_IN_NAMES: Final = str.maketrans(dict.fromkeys(" ,;{}()\n\t\r=.`", "_"))


def column_name(field: str) -> str:
    """The field's name with `_` where tables take no such character."""
    return field.translate(_NOT_IN_NAMES)


def folded(name: str) -> str:
    """The same for names that Spark takes for one: it compares characters in upper and in lower case."""
    return name.upper().casefold().replace("i\N{COMBINING DOT ABOVE}", "i")


def name_problem(field: str, *, top_level: bool) -> str | None:
    """Why no column can have the name of this field; None if one can."""
    if not field:
        return "has an empty name"
    if len(field) > MAX_NAME_CHARACTERS:
        return f"has a name of more than {MAX_NAME_CHARACTERS} characters"
    if not field.isprintable():
        return "has control characters in its name"
    if top_level and is_kept(folded(column_name(field))):
        return "has a name kept for the archive's own columns"
    return None


def is_kept(name: str) -> bool:
    """Whether it is one of the archive's own columns."""
    return name.startswith(KEPT_PREFIX) or name == EVENT_DATE


def merged(known: Any, new: Any) -> Any:
    """Both types' fields; where they differ otherwise `known` stays, since a table's column can't change."""
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


def sql_name(kind: Any) -> str:
    """The type as people know it from SQL, short."""
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
