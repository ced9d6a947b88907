"""Counts and hashes of a batch for each partition, from which a ledger entry is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from tidelog.pipeline.ledger.hashes import record_hash, record_head_hash, row_hash, set_hash, set_hash_sums

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SetSummary:
    """A set of records or rows of one partition."""

    count: int
    hash: str
    first: int
    last: int


def log_record_hash() -> Column:
    """Returns the record hash over the columns of log readers (the Kafka connector's columns)."""
    return record_hash(
        *(fn.col(name) for name in ("key", "value", "headers", "timestamp", "timestampType")),
        *(fn.col(name) for name in ("topic", "partition", "offset")),
    )


def log_head_hash() -> Column:
    """Returns the hash like log_record_hash, but without the value."""
    return record_head_hash(
        *(fn.col(name) for name in ("key", "headers", "timestamp", "timestampType")),
        *(fn.col(name) for name in ("topic", "partition", "offset")),
    )


def table_record_hash() -> Column:
    """Returns the record hash over the columns of a table with raw values. It equals the log's hash of the
    same record.
    """
    return record_hash(
        *(fn.col(f"kafka_{name}") for name in ("key", "value", "headers", "timestamp", "timestamp_type")),
        *(fn.col(f"kafka_{name}") for name in ("topic", "partition", "offset")),
    )


def table_head_hash() -> Column:
    """Returns the hash like table_record_hash, but for tables of decoded values."""
    return record_head_hash(
        *(fn.col(f"kafka_{name}") for name in ("key", "headers", "timestamp", "timestamp_type")),
        *(fn.col(f"kafka_{name}") for name in ("topic", "partition", "offset")),
    )


def summarise_records(records: DataFrame) -> dict[TopicPartition, SetSummary]:
    """Summarises records as read from the log. `log_hash` of a range is their `hash`."""
    return _summarise(records, "topic", "partition", "offset", log_record_hash())


def summarise_rows(rows: DataFrame, columns: Sequence[str]) -> dict[TopicPartition, SetSummary]:
    """Summarises rows as stored. `row_hash` of a range is their `hash`."""
    hashes = row_hash(rows.schema, columns)
    return _summarise(rows, "kafka_topic", "kafka_partition", "kafka_offset", hashes)


def _summarise(
    frame: DataFrame, topic: str, partition: str, offset: str, hashes: Column
) -> dict[TopicPartition, SetSummary]:
    found = (
        frame.select(
            fn.col(topic).alias("topic"),
            fn.col(partition).alias("partition"),
            fn.col(offset).alias("offset"),
            hashes.alias("hash"),
        )
        .groupBy("topic", "partition")
        .agg(
            fn.count("*").alias("count"),
            fn.min("offset").alias("first"),
            fn.max("offset").alias("last"),
            *set_hash_sums(fn.col("hash"), "hash"),
        )
        .collect()
    )
    return {
        (row["topic"], row["partition"]): SetSummary(
            row["count"], set_hash(row["hash_high"], row["hash_low"]), row["first"], row["last"]
        )
        for row in found
    }
