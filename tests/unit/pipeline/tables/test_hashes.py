"""Two sets have the same hash if, and only if, they contain the same records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as fn

from tidelog.pipeline.tables.hashes import (
    add_set_hashes,
    log_record_hash,
    row_hash,
    set_hash,
    summarise_records,
    summarise_rows,
    table_record_hash,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG_SCHEMA = (
    "key binary, value binary, headers array<struct<key string, value binary>>, timestamp timestamp, "
    "timestampType int, topic string, partition int, offset bigint"
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
PLAIN: tuple[Any, ...] = (b"k", b"v", [("h", b"x")], AT, 0, "t", 0, 5)

DISTINCT: list[tuple[Any, ...]] = [
    PLAIN,
    (None, b"v", *PLAIN[2:]),
    (b"", b"v", *PLAIN[2:]),
    (b"k", None, *PLAIN[2:]),
    (b"k", b"", *PLAIN[2:]),
    (b"kv", b"", *PLAIN[2:]),
    (None, b"k", *PLAIN[2:]),
    (b"k", b"v", [], *PLAIN[3:]),
    (b"k", b"v", [("h", None)], *PLAIN[3:]),
    (b"k", b"v", [("h", b"")], *PLAIN[3:]),
    (b"k", b"v", [("h", b"x"), ("h", b"x")], *PLAIN[3:]),
    (b"k", b"v", [("a", b"b"), ("x", None)], *PLAIN[3:]),
    (b"k", b"v", [("a", None), ("b", b"x")], *PLAIN[3:]),
    (b"k", b"v", [("b", b"x"), ("a", None)], *PLAIN[3:]),
    (*PLAIN[:3], AT.replace(microsecond=679000), *PLAIN[4:]),
    (*PLAIN[:4], 1, *PLAIN[5:]),
    (*PLAIN[:5], "u", 0, 5),
    (*PLAIN[:5], "t", 1, 5),
    (*PLAIN[:5], "t", 0, 6),
]


def test_set_hashes_add_up_modulo_two_to_the_64() -> None:
    assert set_hash(None, None) == "0"
    assert set_hash(2**32, 5) == "5"
    assert add_set_hashes(str(2**64 - 1), "3") == "2"


@pytest.mark.spark
def test_each_difference_between_records_changes_the_hash(spark: SparkSession) -> None:
    log = spark.createDataFrame(DISTINCT, LOG_SCHEMA)
    names = {"timestampType": "timestamp_type"}
    table = log.select(*(fn.col(name).alias(f"kafka_{names.get(name, name)}") for name in log.columns))
    hashes = [row.hash for row in log.select(log_record_hash().alias("hash")).collect()]
    assert len(set(hashes)) == len(DISTINCT)
    assert [row.hash for row in table.select(table_record_hash().alias("hash")).collect()] == hashes
    heads = [row.hash for row in log.select(log_record_hash(has_value=False).alias("hash")).collect()]
    assert [
        row.hash for row in table.select(table_record_hash(has_value=False).alias("hash")).collect()
    ] == heads
    assert heads[0] == heads[3] == heads[4], "the hash does not include the value"
    assert len(set(heads)) == len(DISTINCT) - 2 - 1, "... and two more differ in it as well"


@pytest.mark.spark
def test_no_headers_and_an_empty_list_of_them_are_the_same_record(spark: SparkSession) -> None:
    both = spark.createDataFrame([(*PLAIN[:2], [], *PLAIN[3:]), (*PLAIN[:2], None, *PLAIN[3:])], LOG_SCHEMA)
    assert both.select(log_record_hash()).distinct().count() == 1


@pytest.mark.spark
def test_the_hash_of_a_set_ignores_order_and_counts_duplicates(spark: SparkSession) -> None:
    log = spark.createDataFrame(DISTINCT, LOG_SCHEMA)
    whole = summarise_records(log)
    assert summarise_records(log.repartition(3).orderBy(fn.rand())) == whole
    assert whole["t", 0].count == len(DISTINCT) - 2
    assert (whole["t", 0].first, whole["t", 0].last) == (5, 6)
    doubled = summarise_records(log.unionAll(log.where("topic = 'u'")))
    assert doubled["u", 0].hash == add_set_hashes(whole["u", 0].hash, whole["u", 0].hash)
    alone = log.select(log_record_hash().alias("hash")).collect()
    total = add_set_hashes(add_set_hashes(whole["t", 0].hash, whole["t", 1].hash), whole["u", 0].hash)
    assert int(total) == sum(row.hash for row in alone) % 2**64


ROW_SCHEMA = (
    "kafka_topic string, kafka_partition int, kafka_offset bigint, small int, single float, "
    "inner struct<a: int, b: string>, list array<struct<a: int>>, labels map<string, int>"
)
ROWS: list[tuple[Any, ...]] = [
    ("t", 0, 0, 1, 0.1, (1, "x"), [(1,), None], {"a": 1, "b": 2}),
    ("t", 0, 1, None, None, None, None, None),
    ("t", 0, 2, 3, float("nan"), (None, None), [], {}),
]


def _row_hashes(frame: DataFrame, columns: list[str]) -> list[int]:
    return [row.hash for row in frame.select(row_hash(frame.schema, columns).alias("hash")).collect()]


@pytest.mark.spark
def test_later_columns_and_fields_do_not_change_hashes(spark: SparkSession) -> None:
    before = spark.createDataFrame(ROWS, ROW_SCHEMA)
    names = before.columns
    hashes = _row_hashes(before, names)
    assert len(set(hashes)) == len(ROWS)
    after = before.select(
        fn.lit(None).cast("string").alias("added"),
        *reversed(names[:3]),
        fn.col("small").cast("bigint"),
        fn.col("single").cast("double"),
        fn.expr(
            "if(inner is null, null, named_struct('z', cast(null as int), 'b', inner.b, 'a', inner.a))"
        ).alias("inner"),
        "list",
        fn.expr("map_from_entries(reverse(map_entries(labels)))").alias("labels"),
    )
    assert _row_hashes(after, [*names, "added"]) == hashes
    assert _row_hashes(before.withColumn("other", fn.lit(1)), names) == hashes, "a column not named"


@pytest.mark.spark
@pytest.mark.parametrize(
    "change",
    [
        {"small": "2"},
        {"inner": "named_struct('a', 1, 'b', cast(null as string))"},
        {"inner": "cast(null as struct<a: int, b: string>)"},
        {"list": "array(cast(null as struct<a: int>), named_struct('a', 1))"},
        {"list": "array(named_struct('a', 1))"},
        {"labels": "map('a', 2, 'b', 1)"},
        {"kafka_offset": "9L"},
    ],
)
def test_each_difference_between_rows_changes_the_hash(spark: SparkSession, change: dict[str, str]) -> None:
    frame = spark.createDataFrame(ROWS, ROW_SCHEMA).where("kafka_offset = 0")
    changed = frame.withColumns({name: fn.expr(value) for name, value in change.items()})
    assert _row_hashes(frame, frame.columns) != _row_hashes(changed, frame.columns)
    assert summarise_rows(frame, frame.columns) != summarise_rows(changed, frame.columns)
