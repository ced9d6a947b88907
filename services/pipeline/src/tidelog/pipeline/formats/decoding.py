"""The Arrow function of the executors: a column of values into fields, with the reason where that fails.

No exception of one value gets out of here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from tidelog.pipeline.formats.avro_values import AvroReader
from tidelog.pipeline.formats.fitting import Fit, Misfit, NewFieldSighting, fit_of
from tidelog.pipeline.formats.json_values import read_json
from tidelog.pipeline.formats.observed import MAX_COLUMNS, MAX_DEPTH, Shape
from tidelog.pipeline.formats.protobuf_values import ProtobufReader
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind

MAX_REASON_CHARACTERS: Final = 500
FIELDS: Final = "fields"
ERROR_REASON: Final = "error_reason"
HAS_NEW_FIELDS: Final = "has_new_fields"
_NO_ROOM: Final = f"can't become a column: a table has {MAX_COLUMNS} at most, {MAX_DEPTH} deep"
_NOT_A_COLUMN: Final = "is not among the table's columns"


@dataclass(frozen=True)
class DecodePlan:
    """`schema`: the record type, serialised: plans are keys. `is_last`: new fields have had their chance."""

    value_format: ValueFormat
    schema: bytes
    is_last: bool = False

    @classmethod
    def of(cls, value_format: ValueFormat, kind: Any, *, is_last: bool = False) -> DecodePlan:
        return cls(value_format, pa.schema(list(kind)).serialize().to_pybytes(), is_last)

    @property
    def kind(self) -> Any:
        return pa.struct(list(pa.ipc.read_schema(pa.py_buffer(self.schema))))


def result_type(kind: Any) -> Any:
    """Of the column that decode() gives."""
    fields = [] if kind.num_fields == 0 else [(FIELDS, kind)]
    return pa.struct([*fields, (ERROR_REASON, pa.string()), (HAS_NEW_FIELDS, pa.bool_())])


def fixed_kind(value_format: ValueFormat) -> Any | None:
    """The record type that the format itself says; None if records say it. Raises PipelineError."""
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


def _reader_of(value_format: ValueFormat) -> Callable[[bytes], dict[str, Any]]:
    if value_format.kind is ValueKind.AVRO:
        return AvroReader(value_format).read
    if value_format.kind is ValueKind.PROTOBUF:
        return ProtobufReader(value_format).read
    return read_json


def _sighting_of(plan: DecodePlan) -> NewFieldSighting:
    if plan.value_format.kind is not ValueKind.JSON:
        return NewFieldSighting(_NOT_A_COLUMN)  # can't be: all of the schema's fields have columns
    if plan.value_format.new_fields is NewFields.ADD:
        return NewFieldSighting(_NO_ROOM if plan.is_last else None)
    ignores = plan.value_format.new_fields is NewFields.IGNORE
    return NewFieldSighting(_NOT_A_COLUMN, ignores=ignores)


def decode(values: Any, plan: DecodePlan) -> Any:
    """A struct of FIELDS, ERROR_REASON, HAS_NEW_FIELDS for each value. A null value (a tombstone) has neither
    fields nor a reason.
    """
    compiled = _compiled(plan)
    rows: list[dict[str, Any] | None] = []
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


def _decode_one(value: bytes | None, compiled: _Compiled) -> tuple[dict[str, Any] | None, str | None, bool]:
    if value is None:
        return None, None, False
    compiled.sighting.seen = False
    try:
        row = compiled.fit(compiled.read(value))
    except Misfit as misfit:
        return None, _bounded(str(misfit)), False
    except Exception as error:  # noqa: BLE001 - a value no test thought of must not stop its batch
        return None, _bounded(f"can't be read: {type(error).__name__}: {error}"), False
    return row, None, compiled.sighting.seen


def _column_of(rows: list[dict[str, Any] | None], reasons: list[str | None], kind: Any) -> Any:
    try:
        return pa.array(rows, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    # Text that is no Unicode, dates beyond Arrow's: found one by one.
    for number, row in enumerate(rows):
        try:
            pa.array([row], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            rows[number] = None
            reasons[number] = _bounded(f"{_culprit(row, kind)}can't be stored: {error}")
    return pa.array(rows, kind)


def _culprit(row: dict[str, Any] | None, kind: Any) -> str:
    for field in kind:
        try:
            pa.array([(row or {}).get(field.name)], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return f"field {field.name}: "
    return ""


def _bounded(reason: str) -> str:
    """Fit for a header: one line of UTF-8."""
    line = " ".join(reason.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 3]}..."


def observed(values: Iterable[Any]) -> Shape:
    """What the JSON values among `values` have; unreadable ones say nothing."""
    shape = Shape()
    for value in values:
        if value is not None:
            try:
                shape.observe(read_json(value))
            except (Misfit, RecursionError):
                continue
    return shape
