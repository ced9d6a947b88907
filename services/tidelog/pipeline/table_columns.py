"""Names of the columns of an archive's table that describe the record, beside the columns of its decoded
value.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

RECORD_COLUMNS: Final = {
    "topic": "kafka_topic",
    "partition": "kafka_partition",
    "offset": "kafka_offset",
    "timestamp": "kafka_timestamp",
    "timestampType": "kafka_timestamp_type",
    "key": "kafka_key",
    "headers": "kafka_headers",
}
"""The columns, by the names that Spark's Kafka connector gives them."""
RAW_VALUE: Final = "kafka_value"
"""The columns that exist only if values are not decoded."""


def record_columns() -> list[Column]:
    """Returns the columns of the connector's records that do not depend on the values."""
    return [fn.col(name).alias(column) for name, column in RECORD_COLUMNS.items()]


def with_raw_values(records: DataFrame) -> DataFrame:
    return records.select(*record_columns(), fn.col("value").alias(RAW_VALUE))
