"""Hashes that show whether two sets of records, or of rows, are equal, and the counts and hashes of a batch
from which a ledger entry is made.

The hash of one record or row is xxhash64. The hash of a set is the sum of these modulo 2^64. Therefore
neither the order nor the division into files, tasks and commits matters, and a duplicated row counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn

HASH_MODULUS: Final = 2**64
EMPTY_SET_HASH: Final = "0"
_LOW_BITS: Final = 0xFFFFFFFF
_LOG_COLUMNS: Final = (
    *("topic", "partition", "offset", "timestamp", "timestampType"),
    *("key", "value", "headers"),
)
"""The columns of log readers, which are those of the Kafka connector."""
_TABLE_COLUMNS: Final = (
    *("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type"),
    *("kafka_key", "kafka_value", "kafka_headers"),
)


def log_record_hash(*, has_value: bool = True) -> Column:
    """Returns the hash of a raw record as it is in the log, from the columns of log readers.

    A null key, value or header value differs from an empty one. Null and empty header lists are equal, as
    they are in Kafka. Without `has_value`, the value does not count, because a table of decoded values does
    not store it.
    """
    return _record_hash(_LOG_COLUMNS, has_value)


def table_record_hash(*, has_value: bool = True) -> Column:
    """Returns the same hash of the same record, from the columns of a table."""
    return _record_hash(_TABLE_COLUMNS, has_value)


def _record_hash(columns: Sequence[str], has_value: bool) -> Column:
    topic, partition, offset, timestamp, timestamp_type, key, value, headers = columns
    return fn.xxhash64(
        fn.col(topic),
        fn.col(partition).cast("int"),
        fn.col(offset).cast("bigint"),
        fn.col(timestamp),
        fn.col(timestamp_type).cast("int"),
        *_nullable(fn.col(key)),
        *_nullable(fn.col(value) if has_value else fn.lit(None).cast("binary")),
        *_headers(fn.col(headers)),
    )


def row_hash(schema: types.StructType, columns: Sequence[str]) -> Column:
    """Returns the hash of the named columns of a stored row, independent of their order.

    A null adds nothing. A column, or a field of a struct, that is added to the table later therefore does not
    change the hashes of earlier rows.
    """
    chosen = set(columns)
    fields = sorted((field for field in schema.fields if field.name in chosen), key=lambda field: field.name)
    parts = [_tagged(field.name, fn.col(f"`{field.name}`"), field.dataType) for field in fields]
    return fn.xxhash64(fn.lit("row"), *parts)


def set_hash_sums(hashes: Column, prefix: str) -> list[Column]:
    """Returns two aggregates for `set_hash`, which are sums of halves. A sum of decimals is several times
    slower, and a sum of 64-bit integers overflows.
    """
    return [
        fn.sum(fn.shiftrightunsigned(hashes, 32)).alias(f"{prefix}_high"),
        fn.sum(hashes.bitwiseAND(fn.lit(_LOW_BITS))).alias(f"{prefix}_low"),
    ]


def set_hash(high: int | None, low: int | None) -> str:
    """Returns the set's hash as a decimal string, from both sums. The sums are null if there are no rows."""
    return str((((high or 0) << 32) + (low or 0)) % HASH_MODULUS)


def add_set_hashes(first: str, second: str) -> str:
    """Returns the hash of the union of both sets."""
    return str((int(first) + int(second)) % HASH_MODULUS)


def _nullable(column: Column) -> tuple[Column, Column]:
    return column.isNull(), column


def _headers(headers: Column) -> tuple[Column, Column]:
    count = fn.coalesce(fn.greatest(fn.size(headers), fn.lit(0)), fn.lit(0))
    return count, fn.transform(
        headers,
        lambda header: fn.struct(
            header.getField("key"), header.getField("value").isNull(), header.getField("value")
        ),
    )


def _tagged(name: str, column: Column, data_type: types.DataType) -> Column:
    # xxhash64 ignores nulls.
    return fn.when(column.isNotNull(), fn.struct(fn.lit(name), _canonical(column, data_type)))


def _canonical(column: Column, data_type: types.DataType) -> Column:
    """Returns a form of the value that xxhash64 accepts (no maps) and that distinguishes nulls inside it."""
    if isinstance(data_type, types.StructType):
        fields = sorted(data_type.fields, key=lambda field: field.name)
        tagged = [_tagged(field.name, column.getField(field.name), field.dataType) for field in fields]
        return fn.struct(fn.lit("struct"), *tagged, fn.lit("end"))
    if isinstance(data_type, types.ArrayType):
        element_type = data_type.elementType
        elements = fn.transform(
            column, lambda element: fn.struct(element.isNull(), _canonical(element, element_type))
        )
        return fn.struct(fn.size(column), elements)
    if isinstance(data_type, types.MapType):
        entry_type = types.ArrayType(
            types.StructType(
                [types.StructField("key", data_type.keyType), types.StructField("value", data_type.valueType)]
            )
        )
        # Maps have no order of their own. Keys are distinct, so values are never compared.
        entries = fn.array_sort(
            fn.map_entries(column),
            lambda left, right: fn.when(left.getField("key") < right.getField("key"), -1).otherwise(1),
        )
        return _canonical(entries, entry_type)
    if isinstance(data_type, types.ByteType | types.ShortType | types.IntegerType):
        return column.cast("bigint")  # a later widening of the column does not change the hash
    if isinstance(data_type, types.FloatType):
        return column.cast("double")
    return column


TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SetSummary:
    """A set of records or rows of one partition."""

    count: int
    hash: str
    first: int
    last: int


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
