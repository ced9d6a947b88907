"""Names of an archive's columns that hold the record, beside those of its decoded value."""

from __future__ import annotations

from typing import Final

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
