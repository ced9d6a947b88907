"""The rows of an archive's table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as t

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.parquet_commits import EVENT_DATE
from tidelog.pipeline.table_columns import with_raw_values


def raw_rows(records: DataFrame) -> DataFrame:
    return with_event_date(with_raw_values(records), None)


def with_event_date(rows: DataFrame, field: str | None) -> DataFrame:
    """Adds the event date from a field of the values, or from the record's timestamp. Raises PipelineError if
    the field cannot be a date.
    """
    if field is None:
        return rows.withColumn(EVENT_DATE, fn.to_date("kafka_timestamp"))
    types = {each.name: each.dataType for each in rows.schema.fields}
    if field not in types:
        return rows.withColumn(EVENT_DATE, fn.to_date("kafka_timestamp"))
    kind, column = types[field], fn.col(f"`{field}`")
    if isinstance(kind, t.DateType | t.TimestampType | t.TimestampNTZType):
        date = fn.to_date(column)
    elif isinstance(kind, t.StringType):
        date = fn.expr(f"try_cast(substring(`{field}`, 1, 10) AS date)")
    elif isinstance(kind, t.LongType | t.IntegerType):
        date = fn.to_date(fn.timestamp_millis(column.cast("bigint")))
    else:
        raise PipelineError(
            f"field '{field}' is {kind.simpleString()}, which is not an event date; use a date, a "
            "timestamp, text "
            "that begins with YYYY-MM-DD, or milliseconds since 1970"
        )
    return rows.withColumn(EVENT_DATE, fn.coalesce(date, fn.to_date("kafka_timestamp")))
