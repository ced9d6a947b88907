"""Checks of what readers and groups received against the logs and against earlier answers."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from chaoslab import verdict as words
from chaoslab.history import ACKNOWLEDGED
from chaoslab.spark_checker.log_checks import anomaly
from chaoslab.spark_checker.operations import LOG, NAME, PLACE, Operations

_WHERE: Final = ("history", "reader", "assignment", "topic", "partition")


def nonmonotonic_polls(operations: Operations) -> DataFrame:
    rows = _steps(operations).filter(fn.col("offset") <= fn.col("before"))
    return anomaly(rows, words.NONMONOTONIC_POLL, fn.format_string(words.HAD_BEEN_AT, "reader", "before"))


def poll_skips(operations: Operations) -> DataFrame:
    """Finds the first record of the log between a reader's position and its next record."""
    steps = _steps(operations).filter(fn.col("offset") > fn.col("before") + 1)
    steps = steps.select(
        *LOG,
        (fn.col("before") + 1).alias("at"),
        fn.lit(1).alias("turn"),
        fn.lit(None).cast("bigint").alias("stands"),
        fn.struct("reader", "before", fn.col("offset").alias("to")).alias("step"),
    )
    places = operations.places.select(
        *LOG,
        fn.col("offset").alias("at"),
        fn.lit(0).alias("turn"),
        fn.col("offset").alias("stands"),
        fn.lit(None).cast(steps.schema["step"].dataType).alias("step"),
    )
    # The window runs from the end of the log. A frame that ends at its row needs one pass, but one that
    # begins there needs many.
    behind = (
        Window.partitionBy(*LOG)
        .orderBy(fn.desc("at"), fn.asc("turn"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    rows = (
        places.unionByName(steps)
        .withColumn("skipped", fn.last("stands", ignorenulls=True).over(behind))
        .filter(fn.col("step").isNotNull() & (fn.col("skipped") < fn.col("step.to")))
    )
    detail = fn.format_string(
        words.PASSED_OVER, fn.col("step.reader"), fn.col("step.before"), fn.col("step.to")
    )
    return anomaly(rows, words.POLL_SKIP, detail, offset="skipped")


def _steps(operations: Operations) -> DataFrame:
    """Returns each received record with `before`, the reader's previous position in the same assignment, or
    null if it is unknown.
    """
    starts = operations.positions.groupBy(*_WHERE).agg(
        (fn.greatest(fn.max_by("offset", "seq"), fn.lit(0)) - 1).alias("offset")
    )
    shown = operations.reads.select(*_WHERE, "offset", fn.col("is_final").cast("int").alias("turn"), "seq")
    starts = starts.select(
        *_WHERE, "offset", fn.lit(-1).alias("turn"), fn.lit(-1).cast("bigint").alias("seq")
    )
    in_order = Window.partitionBy(*_WHERE).orderBy("turn", "seq")
    return starts.unionByName(shown).withColumn("before", fn.lag("offset").over(in_order)).filter("turn >= 0")


def unseen(operations: Operations) -> DataFrame:
    shown = operations.polls.select("group", *PLACE)
    rows = (
        operations.places.select(*PLACE)
        .join(fn.broadcast(operations.audience), ["history", "topic"])
        .join(shown, ["group", *PLACE], "left_anti")
    )
    return anomaly(rows, words.UNSEEN, fn.format_string(words.NEVER_SHOWN, "group"))


def stale_commits(operations: Operations) -> DataFrame:
    """Finds old positions. Only a partition's owner commits, and never backwards, so a later answer must be
    at least the commit.
    """
    of_group = ("group", *LOG)
    commits = operations.commits.filter(fn.col("outcome") == ACKNOWLEDGED).select(
        *of_group,
        fn.col("ended_at_s").alias("at_s"),
        fn.lit(1).alias("turn"),
        "seq",
        fn.col("offset").alias("committed"),
        fn.lit(None).cast("bigint").alias("offset"),
        fn.lit(None).cast("string").alias("reader"),
    )
    # Commits of the same instant sort after, because they were not acknowledged yet.
    told = operations.positions.select(
        *of_group,
        fn.col("began_at_s").alias("at_s"),
        fn.lit(0).alias("turn"),
        "seq",
        fn.lit(None).cast("bigint").alias("committed"),
        "offset",
        "reader",
    )
    until = (
        Window.partitionBy(*of_group)
        .orderBy("at_s", "turn", "seq")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    ended = fn.when(fn.col("committed").isNotNull(), fn.col("at_s"))
    rows = (
        commits.unionByName(told)
        .withColumn("greatest", fn.max("committed").over(until))
        .withColumn("acknowledged_at_s", fn.last(ended, ignorenulls=True).over(until))
        .filter(fn.col("reader").isNotNull() & (fn.col("offset") < fn.col("greatest")))
        .withColumn("asked_ms", fn.rint(fn.col("at_s") * 1000).cast("bigint"))
        .withColumn("acknowledged_ms", fn.rint(fn.col("acknowledged_at_s") * 1000).cast("bigint"))
    )
    detail = fn.format_string(
        words.TOLD_AN_OLDER_ONE,
        "reader",
        "offset",
        fn.expr("asked_ms div 1000"),
        fn.expr("asked_ms % 1000"),
        "greatest",
        fn.expr("acknowledged_ms div 1000"),
        fn.expr("acknowledged_ms % 1000"),
    )
    return anomaly(rows, words.STALE_COMMIT, detail)


def garbage_reads(operations: Operations) -> DataFrame:
    reads = operations.reads
    changed = reads.filter(~fn.col("is_intact"))
    unknown = reads.filter("is_intact").join(operations.sends.select(*NAME), list(NAME), "left_anti")
    return anomaly(
        changed, words.GARBAGE_READ, fn.format_string(words.ANOTHER_VALUE, "key", "reader")
    ).unionByName(
        anomaly(unknown, words.GARBAGE_READ, fn.format_string(words.NEVER_SENT, "key", "number", "reader"))
    )
