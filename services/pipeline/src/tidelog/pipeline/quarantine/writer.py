"""Bad records of a batch into the quarantine topic, from the executors.

A batch that is repeated sends them again: the origin in their headers says that they are the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from tidelog.pipeline.formats.decoding import ERROR_REASON
from tidelog.pipeline.quarantine.headers import (
    ARCHIVE,
    LEFT_OUT_BYTES,
    OFFSET,
    PARTITION,
    PREFIX,
    REASON,
    TIMESTAMP,
    TOPIC,
)

_OVERHEAD_BYTES: Final = 4096
"""More than the batch, the reason and our other headers take."""
_PRODUCER: Final[Mapping[str, str]] = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "none",  # so that a record's size is known beforehand
    "kafka.max.request.size": str(64 << 20),
    "kafka.buffer.memory": str(96 << 20),
}


def send_to_quarantine(
    bad: DataFrame,
    *,
    bootstrap: str,
    topic: str,
    max_message_bytes: int,
    archive: str,
    client_settings: Mapping[str, str],
) -> None:
    """`bad` has the connector's columns and error_reason; returns when the brokers have them.

    `client_settings` have Kafka's names. A value too large for the topic is left out, a header says so.
    """
    writer = quarantine_records(bad, archive, max_message_bytes).write.format("kafka")
    settings = {**_PRODUCER, **{f"kafka.{name}": value for name, value in client_settings.items()}}
    writer.options(**settings).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def quarantine_records(bad: DataFrame, archive: str, max_message_bytes: int) -> DataFrame:
    """As Spark's Kafka sink takes them."""
    own = F.filter(
        F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>")),
        lambda header: ~header["key"].startswith(PREFIX),
    )
    is_too_large = _size_bytes() > max_message_bytes - _OVERHEAD_BYTES
    millis = F.unix_millis(F.col("timestamp"))
    ours = F.array(
        _header(REASON, F.col(ERROR_REASON)),
        _header(TOPIC, F.col("topic")),
        _header(PARTITION, F.col("partition")),
        _header(OFFSET, F.col("offset")),
        _header(TIMESTAMP, F.coalesce(millis, F.lit(-1))),
        _header(ARCHIVE, F.lit(archive)),
    )
    size = F.array(_header(LEFT_OUT_BYTES, F.octet_length(F.col("value"))))
    none = F.array().cast("array<struct<key:string,value:binary>>")
    return bad.select(
        F.col("key"),
        F.when(is_too_large, F.lit(None)).otherwise(F.col("value")).alias("value"),
        F.concat(own, ours, F.when(is_too_large, size).otherwise(none)).alias("headers"),
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _size_bytes() -> Column:
    """Of key, value and own headers."""
    headers = F.aggregate(
        F.col("headers"),
        F.lit(0),
        lambda total, header: (
            total + F.octet_length(header["key"]) + F.coalesce(F.octet_length(header["value"]), F.lit(0)) + 10
        ),
    )
    parts = [F.octet_length(F.col("key")), F.octet_length(F.col("value")), headers]
    return sum((F.coalesce(part, F.lit(0)) for part in parts), start=F.lit(0))
