"""A batch of records into rows with columns, and those that can't be read beside them, on Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

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
    """`good`: the archive's columns and the decoded ones or the raw value; `bad`: the connector's columns and
    error_reason. `schema`: of the decoded columns, empty for raw ones. `close` gives the memory back.
    """

    good: DataFrame
    bad: DataFrame
    schema: StructType
    good_count: int
    bad_count: int
    close: Callable[[], None]


class Decoder:
    """For one archive. Raises PipelineError if its format and the schemas given can't make columns."""

    def __init__(self, spark: SparkSession, value_format: ValueFormat) -> None:
        self._spark = spark
        self._format = value_format
        self._said: Any = pa.struct([])
        if value_format.kind is ValueKind.JSON and value_format.json_schema is not None:
            self._said = _given_kind(spark, value_format.json_schema)
        elif not value_format.keeps_raw_value:
            self._said = fixed_kind(value_format) or self._said

    def decode(self, records: DataFrame, known: StructType | None = None) -> Decoded:
        """`records` have the connector's columns, `known` is the table's schema. Runs one job, or, where JSON
        has fields that are new to the table, three.
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

    def _run(self, records: DataFrame, kind: Any, *, is_last: bool) -> tuple[DataFrame, int, int, int]:
        """The rows, kept, and how many are good, bad, good with new fields."""
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


def _decoded_part(known: StructType | None) -> Any:
    """Without the archive's own columns."""
    fields = [field for field in (known or ()) if not is_kept(field.name)]
    return _arrow(StructType(fields))


def _arrow(schema: StructType) -> Any:
    return pa.struct(list(to_arrow_schema(schema, timezone="UTC")))


def _given_kind(spark: SparkSession, text: str) -> Any:
    try:
        schema = _parsed(spark, text.strip())
    except Exception as error:  # Spark's parsers raise all sorts
        line = " ".join(str(error).split())[:200]
        raise PipelineError(f"the JSON schema is neither SQL columns nor Spark's JSON: {line}") from error
    for field in schema:
        problem = name_problem(field.name, top_level=True)
        if problem:
            raise PipelineError(f"the JSON schema: the field {field.name} {problem}")
    try:
        kind = _arrow(schema)
        fit_of(kind, NewFieldSighting())
    except (PySparkException, Misfit) as error:
        raise PipelineError(f"the JSON schema has a type that JSON values can't fill: {error}") from error
    return kind


def _parsed(spark: SparkSession, text: str) -> StructType:
    if text.startswith("{"):
        return StructType.fromJson(json.loads(text))
    return spark.createDataFrame([], text).schema


def _observed(records: DataFrame) -> Shape:
    """What the values have, gathered where they are."""

    def gather(batches: Iterator[Any]) -> Iterator[Any]:
        shape = sum_of(observed(batch.column(0).to_pylist()) for batch in batches)
        yield pa.RecordBatch.from_pydict({"shape": [json.dumps(shape.to_json())]})

    rows = records.select("value").mapInArrow(gather, "shape string").collect()
    return sum_of(Shape.from_json(json.loads(row["shape"])) for row in rows)
