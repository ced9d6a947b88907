"""Compares table and log by sums over the ledger's ranges, with one pass over each, then row by row, joined
by offset, where the sums differ.

Only sums are shuffled for the first comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from tidelog.pipeline.quarantine.replay import OFFSET, PARTITION, TOPIC
from tidelog.pipeline.tables.hashes import (
    RAW_VALUE,
    log_record_hash,
    row_hash,
    set_hash,
    set_hash_sums,
    table_record_hash,
)
from tidelog.pipeline.verify.judge import (
    CHANGED,
    COPIES,
    GONE,
    IN_QUARANTINE,
    MISSING,
    PieceSums,
    RowFaults,
    Strays,
)
from tidelog.pipeline.verify.pieces import Bin, Group, Layout, Piece, bins_of
from tidelog.pipeline.verify.verdict import EXPIRED

_BIN_SCHEMA = (
    "bin_topic string, bin_partition int, bin bigint, piece int, piece_start bigint, piece_end bigint, "
    "columns int"
)


def holds_raw_values(rows: DataFrame) -> bool:
    return RAW_VALUE in rows.columns


def table_hashes(rows: DataFrame) -> DataFrame:
    """Returns topic, partition, offset and common of each row."""
    common = table_record_hash(has_value=holds_raw_values(rows))
    return rows.select(*_table_place(), common.alias("common"))


def log_hashes(records: DataFrame, *, is_raw: bool) -> DataFrame:
    """Returns topic, partition, offset and common of each record."""
    common = log_record_hash(has_value=is_raw)
    return records.select("topic", "partition", "offset", common.alias("common"))


def table_sums(rows: DataFrame, layout: Layout) -> tuple[dict[int, PieceSums], list[Strays]]:
    """Returns the sums by piece, and the rows that are in no piece."""
    common = table_record_hash(has_value=holds_raw_values(rows))
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
            log_record_hash(has_value=False).alias("common"),
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


NAMED_OFFSETS: Final = 10_000
"""The number of faulty offsets that are listed. All are counted."""


_ROW, _RECORD, _QUARANTINED = 1, 0, 2


def compare_rows(
    table: DataFrame, log: DataFrame | None, quarantine: DataFrame | None, groups: Sequence[Group]
) -> dict[int, RowFaults]:
    """Compares rows. `table` and `log` have topic, partition, offset, common. `quarantine` has the origins of
    its records. `log` is None if it contains nothing of the groups.
    """
    if not groups:
        return {}
    spans = [
        Piece(group.index, group.topic, group.partition, group.start, group.end, None) for group in groups
    ]
    sides = table.withColumn("side", fn.lit(_ROW))
    if log is not None:
        sides = sides.unionByName(log.withColumn("side", fn.lit(_RECORD)))
    if quarantine is not None:
        no_hash = fn.lit(None).cast("bigint").alias("common")
        sides = sides.unionByName(quarantine.select("*", no_hash, fn.lit(_QUARANTINED).alias("side")))
    is_row, is_record = fn.col("side") == _ROW, fn.col("side") == _RECORD
    offsets = (
        by_piece(sides, spans, "inner")
        .groupBy("piece", "offset")
        .agg(
            fn.count(fn.when(is_row, 1)).alias("rows"),
            # Two readers of a log return the same record, so one copy counts.
            fn.max(fn.when(is_record, 1).otherwise(0)).alias("records"),
            fn.min(fn.when(is_row, fn.col("common"))).alias("least"),
            fn.max(fn.when(is_row, fn.col("common"))).alias("greatest"),
            fn.max(fn.when(is_record, fn.col("common"))).alias("record_hash"),
            fn.max(fn.col("side") == _QUARANTINED).alias("is_in_quarantine"),
        )
        .join(fn.broadcast(_log_ends(table, groups)), "piece")
        .select("piece", "offset", "rows", "records", *(c.alias(name) for name, c in _faults().items()))
        .persist()
    )
    try:
        return _collected(offsets)
    finally:
        offsets.unpersist()


def _log_ends(table: DataFrame, groups: Sequence[Group]) -> DataFrame:
    ends = [(group.index, group.log_start, group.log_end) for group in groups]
    return table.sparkSession.createDataFrame(ends, "piece int, log_start bigint, log_end bigint")


def _faults() -> dict[str, Column]:
    has_row, has_record = fn.col("rows") > 0, fn.col("records") > 0
    differs = (fn.col("least") != fn.col("record_hash")) | (fn.col("greatest") != fn.col("record_hash"))
    is_reached = (fn.col("offset") >= fn.col("log_start")) & (fn.col("offset") < fn.col("log_end"))
    return {
        MISSING: (~has_row & has_record & ~fn.col("is_in_quarantine")).cast("int"),
        COPIES: fn.greatest(fn.col("rows") - 1, fn.lit(0)).cast("int"),
        CHANGED: fn.coalesce(has_row & has_record & differs, fn.lit(False)).cast("int"),
        GONE: (has_row & ~has_record & is_reached).cast("int"),
        EXPIRED: (has_row & ~has_record & ~is_reached).cast("int"),
        IN_QUARANTINE: (~has_row & has_record & fn.col("is_in_quarantine")).cast("int"),
    }


def _collected(offsets: DataFrame) -> dict[int, RowFaults]:
    kinds = (MISSING, COPIES, CHANGED, GONE, EXPIRED, IN_QUARANTINE)
    summed = offsets.groupBy("piece").agg(*(fn.sum(name).alias(name) for name in ("rows", "records", *kinds)))
    found = {
        row["piece"]: RowFaults(*(row[n] for n in ("rows", "records", *kinds))) for row in summed.collect()
    }
    named = (MISSING, COPIES, CHANGED, GONE)
    is_named = fn.greatest(*(fn.col(name) for name in named)) > 0
    for row in offsets.where(is_named).limit(NAMED_OFFSETS).collect():
        for name in named:
            if row[name]:
                found[row["piece"]].offsets.setdefault(name, []).append(row["offset"])
    return found


def quarantine_origins(records: DataFrame) -> DataFrame:
    """Returns topic, partition and offset of the origins of a quarantine topic's records."""

    def header(name: str) -> Column:
        found = fn.filter("headers", lambda each: each.getField("key") == name)
        return fn.try_element_at(found, fn.lit(-1)).getField("value").cast("string")

    return records.select(
        header(TOPIC).alias("topic"),
        header(PARTITION).try_cast("int").alias("partition"),
        header(OFFSET).try_cast("bigint").alias("offset"),
    ).where("topic is not null and partition is not null and offset is not null")
