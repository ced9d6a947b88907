"""Decodes a batch of records into rows with columns, and separates the records that cannot be read, on Spark.

`decode` is the Arrow function of the executors: it converts a column of values into fields, or gives the
reason for a failure. No exception for a single value leaves it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats.avro_values import AvroReader
from tidelog.pipeline.formats.columns import (
    MAX_COLUMNS,
    MAX_DEPTH,
    Fields,
    Shape,
    is_kept,
    merged,
    name_problem,
    sum_of,
    widened,
)
from tidelog.pipeline.formats.fitting import Fit, Misfit, NewFieldSighting, fit_of, read_json
from tidelog.pipeline.formats.protobuf_values import ProtobufReader
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind
from tidelog.pipeline.tables.hashes import record_columns, with_raw_values

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


_DECODED: Final = "tidelog_decoded"


@dataclass(frozen=True)
class Decoded:
    """`good` has the archive's columns and the decoded columns or the raw value. `bad` has the connector's
    columns and error_reason. `schema` is the type of the decoded columns, empty for raw values. `close`
    releases the memory.
    """

    good: DataFrame
    bad: DataFrame
    schema: StructType
    good_count: int
    bad_count: int
    close: Callable[[], None]


class Decoder:
    """The decoder of one archive. Raises PipelineError if its format and schemas cannot be represented by
    columns.
    """

    def __init__(self, spark: SparkSession, value_format: ValueFormat) -> None:
        self._spark = spark
        self._format = value_format
        self._said: pa.DataType = pa.struct([])
        if value_format.kind is ValueKind.JSON and value_format.json_schema is not None:
            self._said = _given_kind(spark, value_format.json_schema)
        elif not value_format.keeps_raw_value:
            self._said = fixed_kind(value_format) or self._said

    def decode(self, records: DataFrame, known: StructType | None = None) -> Decoded:
        """Decodes `records`, which have the connector's columns. `known` is the table's schema. It runs one
        job, or three if JSON has fields that are new to the table.
        """
        if self._format.keeps_raw_value:
            return _raw(records)
        kind = merged(_decoded_part(known), self._said)
        rows, good_count, bad_count, new_count = self._run(records, kind, is_last=False)
        adds = self._format.kind is ValueKind.JSON and self._format.new_fields is NewFields.ADD
        if adds and new_count:
            kind = widened(kind, _observed(rows.filter(fn.col(_DECODED)[HAS_NEW_FIELDS])))
            rows.unpersist()
            rows, good_count, bad_count, _ = self._run(records, kind, is_last=True)
        fields = [fn.col(_DECODED)[FIELDS][field.name].alias(field.name) for field in kind]
        good = rows.filter(fn.col(_DECODED)[ERROR_REASON].isNull()).select(*record_columns(), *fields)
        reason = fn.col(_DECODED)[ERROR_REASON].alias(ERROR_REASON)
        bad = rows.filter(fn.col(_DECODED)[ERROR_REASON].isNotNull()).select(*records.columns, reason)
        schema = from_arrow_schema(pa.schema(list(kind)))
        return Decoded(good, bad, schema, good_count, bad_count, lambda: _forget(rows))

    def _run(
        self, records: DataFrame, kind: pa.DataType, *, is_last: bool
    ) -> tuple[DataFrame, int, int, int]:
        """Returns the cached rows, and how many are good, bad, and good with new fields."""
        plan = DecodePlan.of(self._format, kind, is_last=is_last)

        @arrow_udf(from_arrow_type(result_type(kind)))
        def decoded(values: pa.Array) -> pa.Array:
            return decode(values, plan)

        rows = records.withColumn(_DECODED, decoded(fn.col("value"))).persist(StorageLevel.MEMORY_AND_DISK)
        is_bad = fn.col(_DECODED)[ERROR_REASON].isNotNull()
        found = rows.agg(
            fn.count_if(~is_bad).alias("good"),
            fn.count_if(is_bad).alias("bad"),
            fn.count_if(fn.col(_DECODED)[HAS_NEW_FIELDS]).alias("new"),
        ).first()
        assert found is not None
        return rows, found["good"], found["bad"], found["new"]


def _forget(rows: DataFrame) -> None:
    rows.unpersist()


def _raw(records: DataFrame) -> Decoded:
    good = with_raw_values(records)
    bad = records.filter(fn.lit(False)).withColumn(ERROR_REASON, fn.lit(None).cast("string"))
    return Decoded(good, bad, StructType([]), records.count(), 0, lambda: None)


def _decoded_part(known: StructType | None) -> pa.DataType:
    """Returns the type without the archive's own columns."""
    fields = [field for field in (known or ()) if not is_kept(field.name)]
    return _arrow(StructType(fields))


def _arrow(schema: StructType) -> pa.DataType:
    return pa.struct(list(to_arrow_schema(schema, timezone="UTC")))


def _given_kind(spark: SparkSession, text: str) -> pa.DataType:
    try:
        schema = _parsed(spark, text.strip())
    except Exception as error:  # Spark's parsers raise many kinds of errors
        line = " ".join(str(error).split())[:200]
        raise PipelineError(f"the JSON schema is neither SQL columns nor Spark's JSON: {line}") from error
    for field in schema:
        problem = name_problem(field.name, top_level=True)
        if problem:
            raise PipelineError(f"the JSON schema: field {field.name} {problem}")
    try:
        kind = _arrow(schema)
        fit_of(kind, NewFieldSighting())
    except (PySparkException, Misfit) as error:
        raise PipelineError(f"the JSON schema has a type that JSON values cannot fill: {error}") from error
    return kind


def _parsed(spark: SparkSession, text: str) -> StructType:
    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    return spark.createDataFrame([], text).schema


def _observed(records: DataFrame) -> Shape:
    """Returns the fields that the values have, collected on the executors."""

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shape = sum_of(observed(batch.column(0).to_pylist()) for batch in batches)
        yield pa.RecordBatch.from_pydict({"shape": [json.dumps(shape.to_json())]})

    rows = records.select("value").mapInArrow(gather, "shape string").collect()
    return sum_of(Shape.from_json(json.loads(row["shape"])) for row in rows)
