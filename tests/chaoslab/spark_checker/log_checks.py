"""Checks of the logs' contents against the records that were sent and the records that readers received."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from chaoslab import verdict as words
from chaoslab.history import ABORTED, ACKNOWLEDGED, NO_PLACE, UNKNOWN
from chaoslab.spark_checker.operations import LOG, NAME, PLACE, Operations


def anomaly(
    rows: DataFrame,
    kind: str,
    detail: Column,
    *,
    topic: str = "topic",
    partition: str = "partition",
    offset: Column | str = "offset",
) -> DataFrame:
    """Returns the columns that every check yields."""
    return rows.select(
        "history",
        fn.lit(kind).alias("kind"),
        fn.col(topic).alias("topic"),
        fn.col(partition).alias("partition"),
        (offset if isinstance(offset, Column) else fn.col(offset)).alias("offset"),
        detail.alias("detail"),
    )


def lost_writes(operations: Operations) -> DataFrame:
    names = operations.names
    sends = operations.sends.filter("is_promised").join(names, list(NAME), "left_anti")
    polls = operations.polls.filter("is_intact").join(names, list(NAME), "left_anti")
    return anomaly(
        sends, words.LOST_WRITE, fn.format_string(words.ACKNOWLEDGED_AND_GONE, "key", "number", "process")
    ).unionByName(
        anomaly(polls, words.LOST_WRITE, fn.format_string(words.SHOWN_AND_GONE, "key", "number", "reader"))
    )


def lost_from_copies(operations: Operations) -> DataFrame:
    """Finds records that copies lack below the last copied record. Later records are not lost, because the
    copier may be slow.
    """
    names = operations.names.select(
        "history", fn.col("topic").alias("copy"), "key", "number", fn.lit(True).alias("was_copied")
    )
    records = operations.final.join(fn.broadcast(operations.copies), ["history", "topic"]).join(
        names, ["history", "copy", "key", "number"], "left"
    )
    of_log = Window.partitionBy(*LOG)
    rows = records.withColumn(
        "end", fn.max(fn.when(fn.col("was_copied"), fn.col("offset"))).over(of_log)
    ).filter(fn.col("was_copied").isNull() & (fn.col("offset") <= fn.col("end")))
    detail = fn.format_string(words.NOT_IN_ITS_COPY, "key", "number", "topic", "offset")
    return anomaly(rows, words.LOST_WRITE, detail, topic="copy", offset=fn.lit(NO_PLACE).cast("bigint"))


def duplicates(operations: Operations) -> DataFrame:
    found = Window.partitionBy(*NAME).orderBy("seq")
    rows = (
        operations.final.withColumn("nth", fn.row_number().over(found))
        .withColumn("first_partition", fn.first("partition").over(found))
        .withColumn("first_offset", fn.first("offset").over(found))
        .filter("nth > 1")
    )
    detail = fn.format_string(words.ALSO_ELSEWHERE, "key", "number", "first_partition", "first_offset")
    return anomaly(rows, words.DUPLICATE, detail)


def acknowledged_elsewhere(operations: Operations) -> DataFrame:
    acknowledged = operations.sends.filter(
        (fn.col("outcome") == ACKNOWLEDGED) & (fn.col("offset") != NO_PLACE)
    )
    there = operations.final.select(*NAME, "partition", "offset")
    rows = acknowledged.join(there, [*NAME, "partition", "offset"], "left_anti").join(
        operations.names, list(NAME)
    )
    detail = fn.format_string(words.ACKNOWLEDGED_ELSEWHERE, "key", "number", "first_offset")
    return anomaly(rows, words.INCONSISTENT_OFFSETS, detail)


def different_records_at_one_place(operations: Operations) -> DataFrame:
    shown = operations.reads.select(
        *PLACE,
        "key",
        "number",
        fn.col("is_final").cast("int").alias("turn"),
        "seq",
        fn.col("reader").alias("who"),
    )
    acknowledged = operations.sends.filter(
        (fn.col("outcome") == ACKNOWLEDGED) & (fn.col("offset") != NO_PLACE)
    ).select(*PLACE, "key", "number", fn.lit(2).alias("turn"), "seq", fn.col("process").alias("who"))
    held = shown.unionByName(acknowledged)
    # Hardly any place held two records, so the order of receipt is computed for these places only.
    record = fn.xxhash64("key", "number")
    suspected = (
        held.groupBy(*PLACE).agg(fn.min(record).alias("least"), fn.max(record).alias("greatest"))
    ).filter("least != greatest")
    records = (
        held.join(suspected.select(*PLACE), list(PLACE), "left_semi")
        .groupBy(*PLACE, "key", "number")
        .agg(fn.min(fn.struct("turn", "seq", "who")).alias("first"))
    )
    how = fn.when(
        fn.col("first.turn") == 2,
        fn.format_string(words.ACKNOWLEDGED_THERE, "key", "number", fn.col("first.who")),
    ).otherwise(fn.format_string(words.SHOWN_THERE, "key", "number", fn.col("first.who")))
    rows = (
        records.groupBy(*PLACE)
        .agg(fn.count("*").alias("held"), fn.collect_list(fn.struct("first", how.alias("how"))).alias("all"))
        .filter("held > 1")
    )
    detail = fn.array_join(fn.transform(fn.array_sort("all"), lambda one: one["how"]), ", ")
    return anomaly(rows, words.INCONSISTENT_OFFSETS, detail)


def aborted_reads(operations: Operations) -> DataFrame:
    sends = operations.sends.filter(fn.col("transaction") != "")
    is_aborted = fn.coalesce(fn.col("transaction_outcome") == ABORTED, fn.lit(False))
    aborted = (
        sends.groupBy(*NAME)
        .agg(
            fn.bool_and(is_aborted).alias("is_aborted"),  # after an abort, a copier sends a record again
            fn.max_by("transaction", "seq").alias("transaction"),
        )
        .filter("is_aborted")
    )
    rows = operations.reads.join(aborted, list(NAME))
    detail = fn.format_string(words.SHOWN_THOUGH_ABORTED, "key", "number", "transaction", "reader")
    return anomaly(rows, words.ABORTED_READ, detail)


def torn_transactions(operations: Operations) -> DataFrame:
    # For a record that a copier sent in several transactions, it is unknown which of them is visible.
    tries = Window.partitionBy(*NAME)
    names = operations.names.select(*NAME, fn.lit(True).alias("is_visible"))
    parts = (
        operations.sends.filter(fn.col("transaction") != "")
        .withColumn("tries", fn.count("*").over(tries))
        .filter((fn.col("tries") == 1) & (fn.coalesce("transaction_outcome", fn.lit(UNKNOWN)) == UNKNOWN))
        .join(names, list(NAME), "left")
    )
    missing = fn.when(fn.col("is_visible").isNull(), fn.struct("seq", "topic", "partition", "offset"))
    rows = (
        parts.groupBy("history", "transaction")
        .agg(
            fn.count("*").alias("records"),
            fn.count("is_visible").alias("visible"),
            fn.min(missing).alias("first"),
        )
        .filter("visible > 0 and visible < records")
        .select("*", "first.topic", "first.partition", "first.offset")
    )
    detail = fn.format_string(words.PARTLY_VISIBLE, "visible", "records", "transaction")
    return anomaly(rows, words.TORN_TRANSACTION, detail)


def nonmonotonic_sends(operations: Operations) -> DataFrame:
    """Finds sends out of order. In the order of offsets, the numbers of a key only grow. A repeated number is
    a duplicate and does not count here.
    """
    firsts = (
        operations.places.filter("is_intact")
        .groupBy(*LOG, "key", "number")
        .agg(fn.min("offset").alias("offset"))
    )
    before = Window.partitionBy(*LOG, "key").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    rows = firsts.withColumn(
        "before", fn.greatest(fn.coalesce(fn.max("number").over(before), fn.lit(-1)), fn.lit(-1))
    ).filter(fn.col("number") < fn.col("before"))
    return anomaly(
        rows, words.NONMONOTONIC_SEND, fn.format_string(words.STANDS_AFTER, "key", "number", "before")
    )
