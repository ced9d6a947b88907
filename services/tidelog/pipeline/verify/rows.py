"""Compares table and log row by row, joined by offset, where the sums differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from tidelog.pipeline.quarantine.headers import OFFSET, PARTITION, TOPIC
from tidelog.pipeline.verify.findings import CHANGED, COPIES, EXPIRED, GONE, IN_QUARANTINE, MISSING, RowFaults
from tidelog.pipeline.verify.groups import Group
from tidelog.pipeline.verify.pieces import Piece
from tidelog.pipeline.verify.sums import by_piece

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
