"""Creates the quarantine topic, without retention, if it does not exist, and writes bad records of a batch to
it from the executors.

A repeated batch sends them again. The origin in their headers identifies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from tidelog.client.admin.topics import create_topic, describe_topics_setting
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.pipeline.formats.decoder import ERROR_REASON
from tidelog.pipeline.quarantine.replay import (
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
"""The maximum size of the batch's own bytes, the reason and our other headers."""
_PRODUCER: Final[Mapping[str, str]] = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "none",  # makes the size of a record predictable
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
    """Sends the records of `bad`, which has the connector's columns and error_reason. Returns when the
    brokers have stored them.

    `client_settings` have Kafka's names. A value that is too large for the topic is left out, and a header
    says so.
    """
    writer = quarantine_records(bad, archive, max_message_bytes).write.format("kafka")
    settings = {**_PRODUCER, **{f"kafka.{name}": value for name, value in client_settings.items()}}
    writer.options(**settings).option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def quarantine_records(bad: DataFrame, archive: str, max_message_bytes: int) -> DataFrame:
    """Returns the records with the columns of Spark's Kafka sink."""
    own = fn.filter(
        fn.coalesce(fn.col("headers"), fn.array().cast("array<struct<key:string,value:binary>>")),
        lambda header: ~header["key"].startswith(PREFIX),
    )
    is_too_large = _size_bytes() > max_message_bytes - _OVERHEAD_BYTES
    millis = fn.unix_millis(fn.col("timestamp"))
    ours = fn.array(
        _header(REASON, fn.col(ERROR_REASON)),
        _header(TOPIC, fn.col("topic")),
        _header(PARTITION, fn.col("partition")),
        _header(OFFSET, fn.col("offset")),
        _header(TIMESTAMP, fn.coalesce(millis, fn.lit(-1))),
        _header(ARCHIVE, fn.lit(archive)),
    )
    size = fn.array(_header(LEFT_OUT_BYTES, fn.octet_length(fn.col("value"))))
    none = fn.array().cast("array<struct<key:string,value:binary>>")
    return bad.select(
        fn.col("key"),
        fn.when(is_too_large, fn.lit(None)).otherwise(fn.col("value")).alias("value"),
        fn.concat(own, ours, fn.when(is_too_large, size).otherwise(none)).alias("headers"),
    )


def _header(name: str, value: Column) -> Column:
    return fn.struct(fn.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _size_bytes() -> Column:
    """Returns the size of key, value and own headers."""
    headers = fn.aggregate(
        fn.col("headers"),
        fn.lit(0),
        lambda total, header: (
            total
            + fn.octet_length(header["key"])
            + fn.coalesce(fn.octet_length(header["value"]), fn.lit(0))
            + 10
        ),
    )
    parts = [fn.octet_length(fn.col("key")), fn.octet_length(fn.col("value")), headers]
    return sum((fn.coalesce(part, fn.lit(0)) for part in parts), start=fn.lit(0))


CREATED_MAX_BYTES: Final = 32 << 20
"""The factor by which a record may grow in the quarantine topic, because it carries the reason."""
_CONFIGS: Final = {"retention.ms": "-1", "max.message.bytes": str(CREATED_MAX_BYTES)}
_MAX_BYTES: Final = "max.message.bytes"
_KAFKAS_DEFAULT: Final = 1_048_588


def ensure_quarantine_topic(cluster: Cluster, name: str) -> int:
    """Creates the topic if necessary and returns its maximum batch size in bytes. Raises KafkaError,
    ClientError.
    """
    if name not in cluster.topics([name]):
        try:
            create_topic(cluster, name, configs=_CONFIGS)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        cluster.topic(name)  # waits until the partitions have leaders
    return int(describe_topics_setting(cluster, [name], _MAX_BYTES).get(name) or _KAFKAS_DEFAULT)
