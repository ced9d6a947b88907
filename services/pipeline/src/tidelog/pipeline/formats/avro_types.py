"""Avro schemas as types of columns, and the few values that fastavro gives another shape. Pure.

As in Spark's own reader: null and one other type are a column that may be null; numbers widen; any other
union is a struct member0, member1, ... of which one is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from tidelog.pipeline.formats.columns import column_name, folded
from tidelog.pipeline.formats.observed import MAX_DEPTH

Reshape = Callable[[Any], Any]

_PRIMITIVES: Final[Mapping[str, Any]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final[Mapping[str, Any]] = {
    "date": pa.date32(),
    "time-millis": pa.int32(),
    "time-micros": pa.int64(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_WIDENING: Final = (pa.int32(), pa.int64(), pa.float32(), pa.float64())
_MAX_DECIMAL_DIGITS: Final = 38


class UnusableSchemaError(ValueError):
    """No columns can be made of it."""


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """`reshape` None: values are as the type wants them."""

    kind: Any
    reshape: Reshape | None = None


def column_of(schema: Any, named: Mapping[str, Any], depth: int = 0) -> AvroColumn | None:
    """None for null alone. `named` are the schema's named types, parsed. Raises UnusableSchemaError."""
    if depth > MAX_DEPTH:
        raise UnusableSchemaError(f"nested more than {MAX_DEPTH} deep, or within itself: no columns for that")
    if isinstance(schema, list):
        return _union(schema, named, depth)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return AvroColumn(_PRIMITIVES[schema])
        return None if schema == "null" else column_of(named[schema], named, depth)
    kind = schema["type"]
    logical = _logical(schema)
    if logical is not None:
        return logical
    if kind in ("record", "error"):
        return _record(schema, named, depth)
    if kind == "array":
        return _array(schema, named, depth)
    if kind == "map":
        return _map(schema, named, depth)
    return column_of(kind, named, depth)


def _logical(schema: Mapping[str, Any]) -> AvroColumn | None:
    name = schema.get("logicalType")
    if not isinstance(name, str):
        return None
    if name == "decimal":
        digits = schema["precision"]
        # With more digits than a column has, fastavro's Decimal has no place.
        return AvroColumn(pa.decimal128(min(digits, _MAX_DECIMAL_DIGITS), schema.get("scale", 0)))
    if name in ("time-millis", "time-micros"):
        unit = 1000 if name == "time-millis" else 1
        return AvroColumn(
            _LOGICAL[name], lambda value: None if value is None else _since_midnight(value) // unit
        )
    return AvroColumn(_LOGICAL[name]) if name in _LOGICAL else None


def _since_midnight(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _record(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int) -> AvroColumn:
    fields: dict[str, Any] = {}
    reshapes: dict[str, Reshape] = {}
    for field in schema["fields"]:
        name = field["name"]
        try:
            column = column_of(field["type"], named, depth + 1)
        except UnusableSchemaError as error:
            raise UnusableSchemaError(
                f"{name}: {error}" if ":" not in str(error) else f"{name}.{error}"
            ) from None
        if column is None:
            continue
        if folded(name) in {folded(known) for known in fields}:
            raise UnusableSchemaError(f"{name}: differs from another field in upper and lower case only")
        fields[column_name(name)] = column.kind
        if column.reshape is not None:
            reshapes[name] = column.reshape
    if not fields:
        raise UnusableSchemaError("a record without fields makes no columns")

    def reshape(value: Any) -> Any:
        if value is not None:
            for name, change in reshapes.items():
                value[name] = change(value[name])
        return value

    return AvroColumn(pa.struct(list(fields.items())), reshape if reshapes else None)


def _array(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int) -> AvroColumn | None:
    item = column_of(schema["items"], named, depth + 1)
    if item is None:
        return None
    change = item.reshape
    kind = pa.list_(item.kind)
    if change is None:
        return AvroColumn(kind)
    return AvroColumn(kind, lambda value: None if value is None else [change(each) for each in value])


def _map(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int) -> AvroColumn | None:
    item = column_of(schema["values"], named, depth + 1)
    if item is None:
        return None
    change = item.reshape
    kind = pa.map_(pa.string(), item.kind)
    if change is None:
        return AvroColumn(kind)
    return AvroColumn(
        kind, lambda value: None if value is None else {key: change(each) for key, each in value.items()}
    )


def _union(branches: Sequence[Any], named: Mapping[str, Any], depth: int) -> AvroColumn | None:
    columns = [
        (branch, column) for branch in branches if (column := column_of(branch, named, depth)) is not None
    ]
    if not columns:
        return None
    if len(columns) == 1:
        return columns[0][1]
    kinds = [column.kind for _, column in columns]
    if all(kind in _WIDENING for kind in kinds):
        return AvroColumn(_wider(kinds))
    if all(
        kind == kinds[0] and column.reshape is None for kind, (_, column) in zip(kinds, columns, strict=True)
    ):
        return AvroColumn(kinds[0])
    members = [_Member(f"member{number}", branch, column) for number, (branch, column) in enumerate(columns)]
    named_records = sum(member.record_name is not None for member in members) > 1

    def reshape(value: Any) -> Any:
        if value is None:
            return None
        name = None
        if named_records and type(value) is tuple:
            name, value = value
        for member in members:
            if member.takes(value, name):
                change = member.column.reshape
                return {member.name: value if change is None else change(value)}
        return {members[0].name: value}

    return AvroColumn(pa.struct([(member.name, member.column.kind) for member in members]), reshape)


def _wider(kinds: Sequence[Any]) -> Any:
    widest = max(kinds, key=_WIDENING.index)
    # A float doesn't hold each int, a double does.
    return pa.float64() if widest == pa.float32() and any(map(pa.types.is_integer, kinds)) else widest


class _Member:
    """One branch of a union: recognised by what fastavro makes of its values."""

    def __init__(self, name: str, branch: Any, column: AvroColumn) -> None:
        self.name = name
        self.column = column
        plain = branch["type"] if isinstance(branch, dict) else branch
        is_record = plain in ("record", "error") or plain not in (*_PRIMITIVES, "array", "map")
        self.record_name = (branch["name"] if isinstance(branch, dict) else branch) if is_record else None
        self._types = _types_of(column.kind)

    def takes(self, value: Any, record_name: str | None) -> bool:
        if record_name is not None:
            return self.record_name == record_name
        return type(value) in self._types


def _types_of(kind: Any) -> tuple[type, ...]:
    for matches, types in _PYTHON_TYPES:
        if matches(kind):
            return types
    return ()


_PYTHON_TYPES: Final[tuple[tuple[Callable[[Any], bool], tuple[type, ...]], ...]] = (
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int, time)),
    (pa.types.is_floating, (float,)),
    (pa.types.is_string, (str, UUID)),
    (pa.types.is_binary, (bytes,)),
    (pa.types.is_decimal, (Decimal,)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_date, (date,)),
    (pa.types.is_list, (list,)),
    (pa.types.is_struct, (dict,)),
    (pa.types.is_map, (dict,)),
)
