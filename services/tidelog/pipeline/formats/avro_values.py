"""Reads Avro values: finds the writer schema, then returns the fields as Python values. Avro schemas become
column types. The module does no I/O.

As in Spark's own reader, a union of null and one other type is a nullable column, and numbers widen. Any
other union is a struct member0, member1, ... of which one member is set. A few values that fastavro
represents differently are converted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import fastavro
import pyarrow as pa

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.columns import (
    MAX_DEPTH,
    DecodedValue,
    Fields,
    column_name,
    folded,
    is_kept,
    merged,
)
from tidelog.pipeline.formats.fitting import Misfit
from tidelog.pipeline.formats.value_format import Framing, NamedSchema, ValueFormat
from tidelog.records.schemas import (
    SCHEMA_ID_BYTES,
    SINGLE_OBJECT_BYTES,
    SINGLE_OBJECT_MARK,
    schema_id_of,
    without_invalid_logical_types,
)

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


_FINGERPRINT: Final = "CRC-64-AVRO"
_MAX_PROBLEM_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class _Writer:
    name: str
    schema: AvroSchema
    kind: pa.DataType
    reshape: Reshape | None


class AvroReader:
    """`kind` is a record type with the fields of all writer schemas. Raises PipelineError."""

    def __init__(self, value_format: ValueFormat) -> None:
        writers = [(given, _writer_of(given)) for given in value_format.avro_schemas]
        self.kind = writers[0][1].kind
        for _, writer in writers[1:]:
            self.kind = merged(self.kind, writer.kind)
        if value_format.framing is Framing.CONFLUENT:
            by_id = {given.schema_id: writer for given, writer in writers}
            self._split: Callable[[bytes], tuple[_Writer, int]] = lambda value: _by_schema_id(value, by_id)
        elif value_format.framing is Framing.SINGLE_OBJECT:
            by_print = {fingerprint_of(given): writer for given, writer in writers}
            self._split = lambda value: _by_fingerprint(value, by_print)
        else:
            only = writers[0][1]
            self._split = lambda _value: (only, 0)

    def read(self, value: bytes) -> Fields:
        """Returns the fields of a value. Raises Misfit."""
        writer, begin = self._split(value)
        body = io.BytesIO(value)
        body.seek(begin)
        try:
            found = fastavro.schemaless_reader(
                body, writer.schema, None, return_record_name=True, return_record_name_override=True
            )
        except (
            ArithmeticError,
            EOFError,
            LookupError,
            OSError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise Misfit(f"is not Avro of schema {writer.name}: {_problem_of(error)}") from None
        left = len(value) - body.tell()
        if left:
            raise Misfit(f"is not Avro of schema {writer.name}: {left} bytes are left over")
        return found if writer.reshape is None else writer.reshape(found)  # type: ignore[no-any-return]


def fingerprint_of(given: NamedSchema) -> bytes:
    """Returns the fingerprint that single-object encoding carries."""
    plain = without_invalid_logical_types(json.loads(given.text))
    canonical = fastavro.schema.to_parsing_canonical_form(plain)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, _FINGERPRINT))


def _writer_of(given: NamedSchema) -> _Writer:
    named: dict[str, AvroSchema] = {}
    try:
        plain = without_invalid_logical_types(json.loads(given.text))
        schema = fastavro.parse_schema(plain, named_schemas=named)
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, ValueError) as error:
        raise PipelineError(f"Avro schema {given.name}: {_problem_of(error)}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise PipelineError(f"Avro schema {given.name}: it is not a record, so it has no columns")
    try:
        column = column_of(schema, named)
    except UnusableSchemaError as error:
        raise PipelineError(f"Avro schema {given.name}: {error}") from error
    assert column is not None
    for field in column.kind:
        if is_kept(folded(field.name)):
            raise PipelineError(
                f"Avro schema {given.name}: the name of field {field.name} is reserved for the archive's "
                "columns"
            )
    return _Writer(given.name, schema, column.kind, column.reshape)


def _by_schema_id(value: bytes, writers: dict[int | None, _Writer]) -> tuple[_Writer, int]:
    schema_id = schema_id_of(value)
    if schema_id is None:
        raise Misfit("is not Avro in Confluent's framing: it does not begin with 0 and a schema id")
    writer = writers.get(schema_id)
    if writer is None:
        raise Misfit(f"is Avro of the schema with id {schema_id}, which was not given")
    return writer, SCHEMA_ID_BYTES


def _by_fingerprint(value: bytes, writers: dict[bytes, _Writer]) -> tuple[_Writer, int]:
    if len(value) < SINGLE_OBJECT_BYTES or not value.startswith(SINGLE_OBJECT_MARK):
        raise Misfit("is not Avro in single-object encoding: it does not begin with C3 01 and a fingerprint")
    found = value[len(SINGLE_OBJECT_MARK) : SINGLE_OBJECT_BYTES]
    writer = writers.get(found)
    if writer is None:
        raise Misfit(f"is Avro of the schema with fingerprint {found.hex()}, which was not given")
    return writer, SINGLE_OBJECT_BYTES


def _problem_of(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MAX_PROBLEM_CHARACTERS]
