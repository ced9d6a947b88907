"""Decodes a batch of records into rows with columns, and separates the records that cannot be read, on
Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
from tidelog.pipeline.formats.columns import is_kept, merged, name_problem
from tidelog.pipeline.formats.decoding import (
    ERROR_REASON,
    FIELDS,
    HAS_NEW_FIELDS,
    DecodePlan,
    decode,
    fixed_kind,
    observed,
    result_type,
)
from tidelog.pipeline.formats.fitting import Misfit, NewFieldSighting, fit_of
from tidelog.pipeline.formats.observed import Shape, sum_of, widened
from tidelog.pipeline.formats.value_format import NewFields, ValueFormat, ValueKind
from tidelog.pipeline.table_columns import record_columns, with_raw_values

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
