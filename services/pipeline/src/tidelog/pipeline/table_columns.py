"""Names of an archive's columns that hold the record, beside those of its decoded value."""

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
"""By the names that Spark's Kafka connector has for them."""
RAW_VALUE: Final = "kafka_value"
"""Only where values aren't decoded."""


def record_columns() -> list[Column]:
    """Of records as the connector has them, whatever their values."""
    return [fn.col(name).alias(column) for name, column in RECORD_COLUMNS.items()]


def with_raw_values(records: DataFrame) -> DataFrame:
    return records.select(*record_columns(), fn.col("value").alias(RAW_VALUE))
