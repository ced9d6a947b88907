"""What readers and groups were shown and told, against the logs and against what came before."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from tidelog.pipeline.checker import verdict as words
from tidelog.pipeline.checker.history import ACKNOWLEDGED
from tidelog.pipeline.checker.log_checks import anomaly
from tidelog.pipeline.checker.operations import LOG, NAME, PLACE, Operations

_WHERE: Final = ("history", "reader", "assignment", "topic", "partition")


def nonmonotonic_polls(operations: Operations) -> DataFrame:
    rows = _steps(operations).filter(F.col("offset") <= F.col("before"))
    return anomaly(rows, words.NONMONOTONIC_POLL, F.format_string(words.HAD_BEEN_AT, "reader", "before"))


def poll_skips(operations: Operations) -> DataFrame:
    """The first record of the log between where a reader was and where it went on."""
    steps = _steps(operations).filter(F.col("offset") > F.col("before") + 1)
    steps = steps.select(
        *LOG,
        (F.col("before") + 1).alias("at"),
        F.lit(1).alias("turn"),
        F.lit(None).cast("bigint").alias("stands"),
        F.struct("reader", "before", F.col("offset").alias("to")).alias("step"),
    )
    places = operations.places.select(
        *LOG,
        F.col("offset").alias("at"),
        F.lit(0).alias("turn"),
        F.col("offset").alias("stands"),
        F.lit(None).cast(steps.schema["step"].dataType).alias("step"),
    )
    # Along the log from its end: a frame that ends at its row costs one pass, one that begins there many.
    behind = (
        Window.partitionBy(*LOG)
        .orderBy(F.desc("at"), F.asc("turn"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    rows = (
        places.unionByName(steps)
        .withColumn("skipped", F.last("stands", ignorenulls=True).over(behind))
        .filter(F.col("step").isNotNull() & (F.col("skipped") < F.col("step.to")))
    )
    detail = F.format_string(words.PASSED_OVER, F.col("step.reader"), F.col("step.before"), F.col("step.to"))
    return anomaly(rows, words.POLL_SKIP, detail, offset="skipped")


def _steps(operations: Operations) -> DataFrame:
    """Each record shown, and `before`: where its reader was, within one assignment (null: nobody knows)."""
    starts = operations.positions.groupBy(*_WHERE).agg(
        (F.greatest(F.max_by("offset", "seq"), F.lit(0)) - 1).alias("offset")
    )
    shown = operations.reads.select(*_WHERE, "offset", F.col("is_final").cast("int").alias("turn"), "seq")
    starts = starts.select(*_WHERE, "offset", F.lit(-1).alias("turn"), F.lit(-1).cast("bigint").alias("seq"))
    in_order = Window.partitionBy(*_WHERE).orderBy("turn", "seq")
    return starts.unionByName(shown).withColumn("before", F.lag("offset").over(in_order)).filter("turn >= 0")


def unseen(operations: Operations) -> DataFrame:
    shown = operations.polls.select("group", *PLACE)
    rows = (
        operations.places.select(*PLACE)
        .join(F.broadcast(operations.audience), ["history", "topic"])
        .join(shown, ["group", *PLACE], "left_anti")
    )
    return anomaly(rows, words.UNSEEN, F.format_string(words.NEVER_SHOWN, "group"))


def stale_commits(operations: Operations) -> DataFrame:
    """Only a partition's owner commits, and never backwards, so who asks later is told at least that."""
    of_group = ("group", *LOG)
    commits = operations.commits.filter(F.col("outcome") == ACKNOWLEDGED).select(
        *of_group,
        F.col("ended_at_s").alias("at_s"),
        F.lit(1).alias("turn"),
        "seq",
        F.col("offset").alias("committed"),
        F.lit(None).cast("bigint").alias("offset"),
        F.lit(None).cast("string").alias("reader"),
    )
    # Before commits of the same instant: those were not acknowledged yet.
    told = operations.positions.select(
        *of_group,
        F.col("began_at_s").alias("at_s"),
        F.lit(0).alias("turn"),
        "seq",
        F.lit(None).cast("bigint").alias("committed"),
        "offset",
        "reader",
    )
    until = (
        Window.partitionBy(*of_group)
        .orderBy("at_s", "turn", "seq")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    ended = F.when(F.col("committed").isNotNull(), F.col("at_s"))
    rows = (
        commits.unionByName(told)
        .withColumn("greatest", F.max("committed").over(until))
        .withColumn("acknowledged_at_s", F.last(ended, ignorenulls=True).over(until))
        .filter(F.col("reader").isNotNull() & (F.col("offset") < F.col("greatest")))
        .withColumn("asked_ms", F.rint(F.col("at_s") * 1000).cast("bigint"))
        .withColumn("acknowledged_ms", F.rint(F.col("acknowledged_at_s") * 1000).cast("bigint"))
    )
    detail = F.format_string(
        words.TOLD_AN_OLDER_ONE,
        "reader",
        "offset",
        F.expr("asked_ms div 1000"),
        F.expr("asked_ms % 1000"),
        "greatest",
        F.expr("acknowledged_ms div 1000"),
        F.expr("acknowledged_ms % 1000"),
    )
    return anomaly(rows, words.STALE_COMMIT, detail)


def garbage_reads(operations: Operations) -> DataFrame:
    reads = operations.reads
    changed = reads.filter(~F.col("is_intact"))
    unknown = reads.filter("is_intact").join(operations.sends.select(*NAME), list(NAME), "left_anti")
    return anomaly(
        changed, words.GARBAGE_READ, F.format_string(words.ANOTHER_VALUE, "key", "reader")
    ).unionByName(
        anomaly(unknown, words.GARBAGE_READ, F.format_string(words.NEVER_SENT, "key", "number", "reader"))
    )
