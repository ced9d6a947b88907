"""Segment files as a data source of Spark, without the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers `format("tidelog")` with the session."""
    from tidelog.pipeline.segments.source import SegmentDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SegmentDataSource)
