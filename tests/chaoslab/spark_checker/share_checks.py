"""Checks of what the members of share groups received against the logs and against acknowledgements.

Kafka promises that a record whose acknowledgement is stored never comes again, and that a record that nobody
accepted or rejected comes again until it reaches the limit of deliveries.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from chaoslab import verdict as words
from chaoslab.history import ACKNOWLEDGED, BUFFERED_S, DELIVERY_LIMIT, RELEASED
from chaoslab.spark_checker.log_checks import anomaly
from chaoslab.spark_checker.operations import PLACE, Operations

_OF_GROUP: Final = ("group", *PLACE)


def share_redeliveries(operations: Operations) -> DataFrame:
    """Finds records that were delivered although an earlier acceptance or rejection was stored."""
    stored = operations.deliveries.filter(
        (fn.col("outcome") == ACKNOWLEDGED) & (fn.col("answer") != RELEASED)
    )
    first = stored.groupBy(*_OF_GROUP).agg(
        fn.min_by(fn.struct("member", "answer", "settled_at_s"), fn.struct("settled_at_s", "seq")).alias(
            "first"
        )
    )
    rows = operations.deliveries.join(first, list(_OF_GROUP)).filter(
        fn.col("delivered_at_s") > fn.col("first.settled_at_s") + BUFFERED_S
    )
    detail = fn.format_string(words.GOT_WHAT_WAS_DONE, "member", "first.member", "group", "first.answer")
    return anomaly(rows, words.SHARE_REDELIVERY, detail)


def share_unfinished(operations: Operations) -> DataFrame:
    """Finds records that no member accepted or rejected, and that the group did not give up. An
    acknowledgement without an answer may be stored.
    """
    is_finished = (fn.col("answer") != RELEASED) | (fn.col("delivery_count") >= DELIVERY_LIMIT)
    delivered = operations.deliveries.groupBy(*_OF_GROUP).agg(
        fn.count("*").alias("times"), fn.bool_or(is_finished).alias("is_finished")
    )
    rows = (
        operations.final.select(*PLACE)
        .join(fn.broadcast(operations.shared), ["history", "topic"])
        .join(delivered, list(_OF_GROUP), "left")
        .filter(~fn.coalesce("is_finished", fn.lit(False)))
        .withColumn("times", fn.coalesce("times", fn.lit(0)))
    )
    return anomaly(rows, words.SHARE_UNFINISHED, fn.format_string(words.NEVER_FINISHED, "group", "times"))


def garbage_deliveries(operations: Operations) -> DataFrame:
    changed = operations.deliveries.filter(~fn.col("is_intact"))
    return anomaly(changed, words.GARBAGE_READ, fn.format_string(words.ANOTHER_VALUE, "key", "member"))


def deliveries_of_nothing(operations: Operations) -> DataFrame:
    rows = operations.deliveries.filter("is_intact").join(
        operations.places.select(*PLACE), list(PLACE), "left_anti"
    )
    return anomaly(rows, words.LOST_WRITE, fn.format_string(words.SHOWN_AND_GONE, "key", "number", "member"))


def deliveries_of_other_records(operations: Operations) -> DataFrame:
    stands = operations.places.select(
        *PLACE, fn.col("key").alias("key_there"), fn.col("number").alias("number_there")
    )
    rows = (
        operations.deliveries.filter("is_intact")
        .join(stands, list(PLACE))
        .filter((fn.col("key") != fn.col("key_there")) | (fn.col("number") != fn.col("number_there")))
    )
    detail = fn.format_string(words.SHOWN_THERE, "key", "number", "member")
    return anomaly(rows, words.INCONSISTENT_OFFSETS, detail)
