"""What the logs hold, against what was sent to them and what was ever shown of them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from tidelog.pipeline.checker import verdict as words
from tidelog.pipeline.checker.history import ABORTED, ACKNOWLEDGED, NO_PLACE, UNKNOWN
from tidelog.pipeline.checker.operations import LOG, NAME, PLACE, Operations


def anomaly(
    rows: DataFrame,
    kind: str,
    detail: Column,
    *,
    topic: str = "topic",
    partition: str = "partition",
    offset: Any = "offset",
) -> DataFrame:
    """What every check yields."""
    return rows.select(
        "history",
        F.lit(kind).alias("kind"),
        F.col(topic).alias("topic"),
        F.col(partition).alias("partition"),
        (offset if isinstance(offset, Column) else F.col(offset)).alias("offset"),
        detail.alias("detail"),
    )


def lost_writes(operations: Operations) -> DataFrame:
    names = operations.names
    sends = operations.sends.filter("is_promised").join(names, list(NAME), "left_anti")
    polls = operations.polls.filter("is_intact").join(names, list(NAME), "left_anti")
    return anomaly(
        sends, words.LOST_WRITE, F.format_string(words.ACKNOWLEDGED_AND_GONE, "key", "number", "process")
    ).unionByName(
        anomaly(polls, words.LOST_WRITE, F.format_string(words.SHOWN_AND_GONE, "key", "number", "reader"))
    )


def lost_from_copies(operations: Operations) -> DataFrame:
    """Below the last record that was copied; a copier that came no further is slow, and nothing is lost."""
    names = operations.names.select(
        "history", F.col("topic").alias("copy"), "key", "number", F.lit(True).alias("was_copied")
    )
    records = operations.final.join(F.broadcast(operations.copies), ["history", "topic"]).join(
        names, ["history", "copy", "key", "number"], "left"
    )
    of_log = Window.partitionBy(*LOG)
    rows = records.withColumn("end", F.max(F.when(F.col("was_copied"), F.col("offset"))).over(of_log)).filter(
        F.col("was_copied").isNull() & (F.col("offset") <= F.col("end"))
    )
    detail = F.format_string(words.NOT_IN_ITS_COPY, "key", "number", "topic", "offset")
    return anomaly(rows, words.LOST_WRITE, detail, topic="copy", offset=F.lit(NO_PLACE).cast("bigint"))


def duplicates(operations: Operations) -> DataFrame:
    found = Window.partitionBy(*NAME).orderBy("seq")
    rows = (
        operations.final.withColumn("nth", F.row_number().over(found))
        .withColumn("first_partition", F.first("partition").over(found))
        .withColumn("first_offset", F.first("offset").over(found))
        .filter("nth > 1")
    )
    detail = F.format_string(words.ALSO_ELSEWHERE, "key", "number", "first_partition", "first_offset")
    return anomaly(rows, words.DUPLICATE, detail)


def acknowledged_elsewhere(operations: Operations) -> DataFrame:
    acknowledged = operations.sends.filter((F.col("outcome") == ACKNOWLEDGED) & (F.col("offset") != NO_PLACE))
    there = operations.final.select(*NAME, "partition", "offset")
    rows = acknowledged.join(there, [*NAME, "partition", "offset"], "left_anti").join(
        operations.names, list(NAME)
    )
    detail = F.format_string(words.ACKNOWLEDGED_ELSEWHERE, "key", "number", "first_offset")
    return anomaly(rows, words.INCONSISTENT_OFFSETS, detail)


def different_records_at_one_place(operations: Operations) -> DataFrame:
    shown = operations.reads.select(
        *PLACE,
        "key",
        "number",
        F.col("is_final").cast("int").alias("turn"),
        "seq",
        F.col("reader").alias("who"),
    )
    acknowledged = operations.sends.filter(
        (F.col("outcome") == ACKNOWLEDGED) & (F.col("offset") != NO_PLACE)
    ).select(*PLACE, "key", "number", F.lit(2).alias("turn"), "seq", F.col("process").alias("who"))
    held = shown.unionByName(acknowledged)
    # Hardly any place held two; only of those it is worth to know who was told what first.
    record = F.xxhash64("key", "number")
    suspected = (
        held.groupBy(*PLACE).agg(F.min(record).alias("least"), F.max(record).alias("greatest"))
    ).filter("least != greatest")
    records = (
        held.join(suspected.select(*PLACE), list(PLACE), "left_semi")
        .groupBy(*PLACE, "key", "number")
        .agg(F.min(F.struct("turn", "seq", "who")).alias("first"))
    )
    how = F.when(
        F.col("first.turn") == 2,
        F.format_string(words.ACKNOWLEDGED_THERE, "key", "number", F.col("first.who")),
    ).otherwise(F.format_string(words.SHOWN_THERE, "key", "number", F.col("first.who")))
    rows = (
        records.groupBy(*PLACE)
        .agg(F.count("*").alias("held"), F.collect_list(F.struct("first", how.alias("how"))).alias("all"))
        .filter("held > 1")
    )
    detail = F.array_join(F.transform(F.array_sort("all"), lambda one: one["how"]), ", ")
    return anomaly(rows, words.INCONSISTENT_OFFSETS, detail)


def aborted_reads(operations: Operations) -> DataFrame:
    sends = operations.sends.filter(F.col("transaction") != "")
    is_aborted = F.coalesce(F.col("transaction_outcome") == ABORTED, F.lit(False))
    aborted = (
        sends.groupBy(*NAME)
        .agg(
            F.bool_and(is_aborted).alias("is_aborted"),  # a copier sends a record again after it aborted
            F.max_by("transaction", "seq").alias("transaction"),
        )
        .filter("is_aborted")
    )
    rows = operations.reads.join(aborted, list(NAME))
    detail = F.format_string(words.SHOWN_THOUGH_ABORTED, "key", "number", "transaction", "reader")
    return anomaly(rows, words.ABORTED_READ, detail)


def torn_transactions(operations: Operations) -> DataFrame:
    # One that was sent in several transactions (a copier's) does not say which of them is visible.
    tries = Window.partitionBy(*NAME)
    names = operations.names.select(*NAME, F.lit(True).alias("is_visible"))
    parts = (
        operations.sends.filter(F.col("transaction") != "")
        .withColumn("tries", F.count("*").over(tries))
        .filter((F.col("tries") == 1) & (F.coalesce("transaction_outcome", F.lit(UNKNOWN)) == UNKNOWN))
        .join(names, list(NAME), "left")
    )
    missing = F.when(F.col("is_visible").isNull(), F.struct("seq", "topic", "partition", "offset"))
    rows = (
        parts.groupBy("history", "transaction")
        .agg(
            F.count("*").alias("records"),
            F.count("is_visible").alias("visible"),
            F.min(missing).alias("first"),
        )
        .filter("visible > 0 and visible < records")
        .select("*", "first.topic", "first.partition", "first.offset")
    )
    detail = F.format_string(words.PARTLY_VISIBLE, "visible", "records", "transaction")
    return anomaly(rows, words.TORN_TRANSACTION, detail)


def nonmonotonic_sends(operations: Operations) -> DataFrame:
    """By offset, a key's numbers only grow; a repeat is a duplicate, not a matter of order."""
    firsts = (
        operations.places.filter("is_intact")
        .groupBy(*LOG, "key", "number")
        .agg(F.min("offset").alias("offset"))
    )
    before = Window.partitionBy(*LOG, "key").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    rows = firsts.withColumn(
        "before", F.greatest(F.coalesce(F.max("number").over(before), F.lit(-1)), F.lit(-1))
    ).filter(F.col("number") < F.col("before"))
    return anomaly(
        rows, words.NONMONOTONIC_SEND, F.format_string(words.STANDS_AFTER, "key", "number", "before")
    )
