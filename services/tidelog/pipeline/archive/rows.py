"""The rows of an archive's table."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql import types as t

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.parquet_commits import EVENT_DATE
from tidelog.pipeline.table_columns import with_raw_values

FIRST_MS: Final = -62_135_596_800_000  # 0001-01-01
LAST_MS: Final = 253_402_300_799_999  # 9999-12-31


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
    least, greatest = fn.lit("0001-01-01").cast("date"), fn.lit("9999-12-31").cast("date")
    if isinstance(kind, t.DateType | t.TimestampType | t.TimestampNTZType):
        date = fn.to_date(column)
    elif isinstance(kind, t.StringType):
        date = fn.expr(f"try_cast(substring(`{field}`, 1, 10) AS date)")
    elif isinstance(kind, t.LongType | t.IntegerType):
        millis = column.cast("bigint")
        date = fn.when(
            millis.between(FIRST_MS, LAST_MS),  # other numbers could overflow
            fn.to_date(fn.timestamp_millis(millis)),
        )
    else:
        raise PipelineError(
            f"field '{field}' is {kind.simpleString()}, which is not an event date; use a date, a "
            "timestamp, text "
            "that begins with YYYY-MM-DD, or milliseconds since 1970"
        )
    date = fn.when(date.between(least, greatest), date)
    return rows.withColumn(EVENT_DATE, fn.coalesce(date, fn.to_date("kafka_timestamp")))


def has_calendar_time() -> Column:
    """Returns whether a record, with the connector's columns, has a time in the years 1 to 9999.

    Other readers than Spark fail at later dates in a table's partitions and statistics.
    """
    first, last = (fn.timestamp_millis(fn.lit(time_ms)) for time_ms in (FIRST_MS, LAST_MS))
    return fn.col("timestamp").between(first, last)
