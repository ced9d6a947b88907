"""Hashes that show whether two sets of records, or of rows, are equal.

The hash of one record or row is xxhash64. The hash of a set is the sum of these modulo 2^64. Therefore
neither the order nor the division into files, tasks and commits matters, and a duplicated row counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, types
from pyspark.sql import functions as fn

HASH_MODULUS: Final = 2**64
EMPTY_SET_HASH: Final = "0"
_LOW_BITS: Final = 0xFFFFFFFF


def record_hash(
    key: Column,
    value: Column,
    headers: Column,
    timestamp: Column,
    timestamp_type: Column,
    topic: Column,
    partition: Column,
    offset: Column,
) -> Column:
    """Returns the hash of a raw record as it is in the log. A null key, value or header value differs from an
    empty one. Null and empty header lists are equal, as they are in Kafka.
    """
    return fn.xxhash64(
        topic,
        partition.cast("int"),
        offset.cast("bigint"),
        timestamp,
        timestamp_type.cast("int"),
        *_nullable(key),
        *_nullable(value),
        *_headers(headers),
    )


def record_head_hash(
    key: Column,
    headers: Column,
    timestamp: Column,
    timestamp_type: Column,
    topic: Column,
    partition: Column,
    offset: Column,
) -> Column:
    """Returns the hash of a record without its value, because a table of decoded values does not store it."""
    nothing = fn.lit(None).cast("binary")
    return record_hash(key, nothing, headers, timestamp, timestamp_type, topic, partition, offset)


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
