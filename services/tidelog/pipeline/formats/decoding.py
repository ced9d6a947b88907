"""The Arrow function of the executors: it converts a column of values into fields, or gives the reason for a
failure.

No exception for a single value leaves this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.pipeline.formats.avro_values import AvroReader
from tidelog.pipeline.formats.columns import Fields
from tidelog.pipeline.formats.fitting import Fit, Misfit, NewFieldSighting, fit_of
from tidelog.pipeline.formats.json_values import read_json
from tidelog.pipeline.formats.observed import MAX_COLUMNS, MAX_DEPTH, Shape
from tidelog.pipeline.formats.protobuf_values import ProtobufReader
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind

MAX_REASON_CHARACTERS: Final = 500
FIELDS: Final = "fields"
ERROR_REASON: Final = "error_reason"
HAS_NEW_FIELDS: Final = "has_new_fields"
_NO_ROOM: Final = f"cannot become a column: a table has at most {MAX_COLUMNS} columns and {MAX_DEPTH} levels"
_NOT_A_COLUMN: Final = "is not among the table's columns"


@dataclass(frozen=True)
class DecodePlan:
    """`schema` is the serialised record type, so that plans can be keys. `is_last` means that new fields were
    already considered.
    """

    value_format: ValueFormat
    schema: bytes
    is_last: bool = False

    @classmethod
    def of(cls, value_format: ValueFormat, kind: pa.DataType, *, is_last: bool = False) -> DecodePlan:
        return cls(value_format, pa.schema(list(kind)).serialize().to_pybytes(), is_last)

    @property
    def kind(self) -> pa.DataType:
        return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(self.schema))))


def result_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the column that decode() returns."""
    fields = [] if kind.num_fields == 0 else [(FIELDS, kind)]
    return pa.struct([*fields, (ERROR_REASON, pa.string()), (HAS_NEW_FIELDS, pa.bool_())])


def fixed_kind(value_format: ValueFormat) -> pa.DataType | None:
    """Returns the record type that the format defines, or None if the records define it. Raises
    PipelineError.
    """
    if value_format.kind is ValueKind.AVRO:
        return AvroReader(value_format).kind
    return ProtobufReader(value_format).kind if value_format.kind is ValueKind.PROTOBUF else None


class _Compiled:
    def __init__(self, plan: DecodePlan) -> None:
        self.kind = plan.kind
        self.result_type = result_type(self.kind)
        self.read = _reader_of(plan.value_format)
        self.sighting = _sighting_of(plan)
        self.fit: Fit = fit_of(self.kind, self.sighting)


@functools.lru_cache(maxsize=4)
def _compiled(plan: DecodePlan) -> _Compiled:
    return _Compiled(plan)


def _reader_of(value_format: ValueFormat) -> Callable[[bytes], Fields]:
    if value_format.kind is ValueKind.AVRO:
        return AvroReader(value_format).read
    if value_format.kind is ValueKind.PROTOBUF:
        return ProtobufReader(value_format).read
    return read_json


def _sighting_of(plan: DecodePlan) -> NewFieldSighting:
    if plan.value_format.kind is not ValueKind.JSON:
        return NewFieldSighting(_NOT_A_COLUMN)  # all of the schema's fields have columns
    if plan.value_format.new_fields is NewFields.ADD:
        return NewFieldSighting(_NO_ROOM if plan.is_last else None)
    ignores = plan.value_format.new_fields is NewFields.IGNORE
    return NewFieldSighting(_NOT_A_COLUMN, ignores=ignores)


def decode(values: pa.Array, plan: DecodePlan) -> pa.Array:
    """Returns a struct of FIELDS, ERROR_REASON and HAS_NEW_FIELDS for each value. A null value (a tombstone)
    has neither fields nor a reason.
    """
    compiled = _compiled(plan)
    rows: list[Fields | None] = []
    reasons: list[str | None] = []
    news: list[bool] = []
    for value in values.to_pylist():
        row, reason, has_new = _decode_one(value, compiled)
        rows.append(row)
        reasons.append(reason)
        news.append(has_new)
    children = [_column_of(rows, reasons, compiled.kind)] if compiled.kind.num_fields else []
    children += [pa.array(reasons, pa.string()), pa.array(news, pa.bool_())]
    return pa.StructArray.from_arrays(children, fields=list(compiled.result_type))


def _decode_one(value: bytes | None, compiled: _Compiled) -> tuple[Fields | None, str | None, bool]:
    if value is None:
        return None, None, False
    compiled.sighting.seen = False
    try:
        row = compiled.fit(compiled.read(value))
    except Misfit as misfit:
        return None, _bounded(str(misfit)), False
    except Exception as error:  # noqa: BLE001 - a value no test thought of must not stop its batch
        return None, _bounded(f"the value cannot be read: {type(error).__name__}: {error}"), False
    return row, None, compiled.sighting.seen


def _column_of(rows: list[Fields | None], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    # Invalid Unicode, and dates outside Arrow's range, are found value by value.
    for number, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            rows[number] = None
            reasons[number] = _bounded(f"{_culprit(row, kind)}cannot be stored: {error}")
    return pa.array(rows, kind)


def _culprit(row: Fields | None, kind: pa.DataType) -> str:
    for field in kind:
        try:
            pa.array([(row or {}).get(field.name)], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return f"field {field.name} "
    return "the value "


def _bounded(reason: str) -> str:
    """Returns the text as one bounded line of UTF-8, which fits into a header."""
    line = " ".join(reason.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 3]}..."


def observed(values: Iterable[pa.Scalar]) -> Shape:
    """Returns the fields of the JSON values among `values`. Unreadable values are ignored."""
    shape = Shape()
    for value in values:
        if value is not None:
            try:
                shape.observe(read_json(value))
            except (Misfit, RecursionError):
                continue
    return shape
