"""The columns of the source as Spark's types. Their Arrow types are in `tidelog.records.columns.arrow`."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.pipeline.errors import PipelineError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def spark_schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Returns the column names of a schema that may come from the user. Raises PipelineError."""
    for field in schema.fields:
        if _TYPES.get(field.name) != field.dataType:
            raise PipelineError(
                f"the segment source has no column {field.name} of type "
                f"{field.dataType.simpleString()}: choose from its own columns by .option('columns', "
                "'offset,value')"
            )
    return tuple(schema.fieldNames())
