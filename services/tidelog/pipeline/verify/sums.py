"""Sums over table and log by the ledger's ranges, with one pass over each. Only sums are shuffled."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from tidelog.pipeline.ledger.hashes import row_hash, set_hash, set_hash_sums
from tidelog.pipeline.ledger.summary import (
    log_head_hash,
    log_record_hash,
    table_head_hash,
    table_record_hash,
)
from tidelog.pipeline.table_columns import RAW_VALUE
from tidelog.pipeline.verify.bins import Bin, bins_of
from tidelog.pipeline.verify.findings import PieceSums, Strays
from tidelog.pipeline.verify.pieces import Layout, Piece

_BIN_SCHEMA = (
    "bin_topic string, bin_partition int, bin bigint, piece int, piece_start bigint, piece_end bigint, "
    "columns int"
)


def holds_raw_values(rows: DataFrame) -> bool:
    return RAW_VALUE in rows.columns


def table_hashes(rows: DataFrame) -> DataFrame:
    """Returns topic, partition, offset and common of each row."""
    common = table_record_hash() if holds_raw_values(rows) else table_head_hash()
    return rows.select(*_table_place(), common.alias("common"))


def log_hashes(records: DataFrame, *, is_raw: bool) -> DataFrame:
    """Returns topic, partition, offset and common of each record."""
    common = log_record_hash() if is_raw else log_head_hash()
    return records.select("topic", "partition", "offset", common.alias("common"))


def table_sums(rows: DataFrame, layout: Layout) -> tuple[dict[int, PieceSums], list[Strays]]:
    """Returns the sums by piece, and the rows that are in no piece."""
    common = table_record_hash() if holds_raw_values(rows) else table_head_hash()
    own = [row_hash(rows.schema, columns).alias(f"own_{n}") for n, columns in enumerate(layout.column_sets)]
    hashed = rows.select(*_table_place(), common.alias("common"), *own)
    joined = by_piece(hashed, layout.pieces, "left")
    return _sums(joined, _own_hash(len(layout.column_sets)))


def log_sums(records: DataFrame, layout: Layout, *, is_raw: bool) -> dict[int, PieceSums]:
    """Returns the sums by piece."""
    hashed = log_hashes(records, is_raw=is_raw).withColumn("own", fn.col("common"))
    if not is_raw:
        hashed = records.select(
            "topic",
            "partition",
            "offset",
            log_head_hash().alias("common"),
            log_record_hash().alias("own"),
        )
    return _sums(by_piece(hashed, layout.pieces, "inner"), fn.col("own"))[0]


def by_piece(frame: DataFrame, pieces: Sequence[Piece], how: str) -> DataFrame:
    """Adds to each row of `frame` (topic, partition, offset, ...) the `piece` that contains its offset."""
    shift, bins = bins_of(pieces)
    places = fn.broadcast(_bins_frame(frame.sparkSession, bins))
    is_in = (
        (frame["topic"] == places["bin_topic"])
        & (frame["partition"] == places["bin_partition"])
        & (fn.shiftright(frame["offset"], shift) == places["bin"])
        & (frame["offset"] >= places["piece_start"])
        & (frame["offset"] < places["piece_end"])
    )
    return frame.join(places, is_in, how).drop(
        "bin_topic", "bin_partition", "bin", "piece_start", "piece_end"
    )


def _bins_frame(spark: SparkSession, bins: Sequence[Bin]) -> DataFrame:
    return spark.createDataFrame([tuple(each) for each in bins], _BIN_SCHEMA)


def _table_place() -> list[Column]:
    return [
        fn.col("kafka_topic").alias("topic"),
        fn.col("kafka_partition").cast("int").alias("partition"),
        fn.col("kafka_offset").cast("bigint").alias("offset"),
    ]


def _own_hash(count: int) -> Column:
    """Returns the hash over the columns of the piece's commit."""
    chosen = fn.lit(None).cast("bigint")
    for number in range(count):
        chosen = fn.when(fn.col("columns") == number, fn.col(f"own_{number}")).otherwise(chosen)
    return chosen


def _sums(joined: DataFrame, own: Column) -> tuple[dict[int, PieceSums], list[Strays]]:
    # The place is needed only for rows that are in no piece.
    stray = fn.col("piece").isNull()
    found = (
        joined.withColumn("own_hash", own)
        .groupBy(
            "piece",
            fn.when(stray, fn.col("topic")).alias("stray_topic"),
            fn.when(stray, fn.col("partition")).alias("stray_partition"),
        )
        .agg(
            fn.count("*").alias("count"),
            fn.min("offset").alias("first"),
            fn.max("offset").alias("last"),
            *set_hash_sums(fn.col("own_hash"), "own"),
            *set_hash_sums(fn.col("common"), "common"),
        )
        .collect()
    )
    sums: dict[int, PieceSums] = {}
    strays: list[Strays] = []
    for row in found:
        if row["piece"] is None:
            strays.append(
                Strays(row["stray_topic"], row["stray_partition"], row["count"], row["first"], row["last"])
            )
            continue
        sums[row["piece"]] = PieceSums(
            row["count"],
            set_hash(row["own_high"], row["own_low"]),
            set_hash(row["common_high"], row["common_low"]),
        )
    return sums, strays
