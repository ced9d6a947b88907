"""Avro schemas as column types, and the few values that fastavro represents differently. The module does no
I/O.

As in Spark's own reader, a union of null and one other type is a nullable column, and numbers widen. Any
other union is a struct member0, member1, ... of which one member is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from tidelog.pipeline.formats.columns import DecodedValue, column_name, folded
from tidelog.pipeline.formats.observed import MAX_DEPTH

AvroSchema: TypeAlias = Any
"""A parsed schema, as fastavro returns it: a name, a union's list, or a mapping. fastavro has no types."""
Reshape = Callable[[DecodedValue], DecodedValue]

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
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
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
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
    """The schema cannot be represented by columns."""


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """If `reshape` is None, the values already have the form of the type."""

    kind: pa.DataType
    reshape: Reshape | None = None


def column_of(schema: AvroSchema, named: Mapping[str, AvroSchema], depth: int = 0) -> AvroColumn | None:
    """Returns the column of a type, or None for null alone. `named` holds the schema's parsed named types.
    Raises UnusableSchemaError.
    """
    if depth > MAX_DEPTH:
        raise UnusableSchemaError(
            f"is nested more than {MAX_DEPTH} deep, or within itself, which columns cannot represent"
        )
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


def _logical(schema: AvroSchema) -> AvroColumn | None:
    name = schema.get("logicalType")
    if not isinstance(name, str):
        return None
    if name == "decimal":
        digits = schema["precision"]
        # fastavro's Decimal has no place in a column with fewer digits.
        return AvroColumn(pa.decimal128(min(digits, _MAX_DECIMAL_DIGITS), schema.get("scale", 0)))
    if name == "uuid" and schema["type"] == "fixed":  # fastavro returns its bytes
        return None
    if name in ("time-millis", "time-micros"):
        unit = 1000 if name == "time-millis" else 1
        return AvroColumn(
            _LOGICAL[name], lambda value: None if value is None else _since_midnight(value) // unit
        )
    return AvroColumn(_LOGICAL[name]) if name in _LOGICAL else None


def _since_midnight(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _record(schema: AvroSchema, named: Mapping[str, AvroSchema], depth: int) -> AvroColumn:
    fields: dict[str, pa.DataType] = {}
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
            raise UnusableSchemaError(f"{name} differs from another field only in upper and lower case")
        fields[column_name(name)] = column.kind
        if column.reshape is not None:
            reshapes[name] = column.reshape
    if not fields:
        raise UnusableSchemaError("a record without fields has no columns")

    def reshape(value: DecodedValue) -> DecodedValue:
        if value is not None:
            for name, change in reshapes.items():
                value[name] = change(value[name])
        return value

    return AvroColumn(pa.struct(list(fields.items())), reshape if reshapes else None)


def _array(schema: AvroSchema, named: Mapping[str, AvroSchema], depth: int) -> AvroColumn | None:
    item = column_of(schema["items"], named, depth + 1)
    if item is None:
        return None
    change = item.reshape
    kind = pa.list_(item.kind)
    if change is None:
        return AvroColumn(kind)
    return AvroColumn(kind, lambda value: None if value is None else [change(each) for each in value])


def _map(schema: AvroSchema, named: Mapping[str, AvroSchema], depth: int) -> AvroColumn | None:
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


def _union(branches: Sequence[AvroSchema], named: Mapping[str, AvroSchema], depth: int) -> AvroColumn | None:
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

    def reshape(value: DecodedValue) -> DecodedValue:
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


def _wider(kinds: Sequence[pa.DataType]) -> pa.DataType:
    widest = max(kinds, key=_WIDENING.index)
    # A float cannot hold each int exactly, but a double can.
    return pa.float64() if widest == pa.float32() and any(map(pa.types.is_integer, kinds)) else widest


class _Member:
    """One branch of a union, recognized by the type that fastavro gives its values."""

    def __init__(self, name: str, branch: AvroSchema, column: AvroColumn) -> None:
        self.name = name
        self.column = column
        plain = branch["type"] if isinstance(branch, dict) else branch
        is_record = plain in ("record", "error") or plain not in (*_PRIMITIVES, "array", "map")
        self.record_name = (branch["name"] if isinstance(branch, dict) else branch) if is_record else None
        self._types = _types_of(column.kind)

    def takes(self, value: DecodedValue, record_name: str | None) -> bool:
        if record_name is not None:
            return self.record_name == record_name
        return type(value) in self._types


def _types_of(kind: pa.DataType) -> tuple[type, ...]:
    for matches, types in _PYTHON_TYPES:
        if matches(kind):
            return types
    return ()


_PYTHON_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
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
