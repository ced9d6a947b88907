"""Filters that are applied exactly, filters that Spark applies, and options that are rejected in one
sentence.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.options import OffsetsOption, parse_options
from tidelog.pipeline.segments.source import Wanted
from tidelog.records.columns.arrow import COLUMNS
from tidelog.records.columns.rows import RowBounds

OFFSET, TIMESTAMP, TOPIC, PARTITION = ("offset",), ("timestamp",), ("topic",), ("partition",)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_US = 1_767_355_200_000_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThan(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], RowBounds(6, 10)),
        ([GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 9), LessThan(OFFSET, 8)], RowBounds(5, 8)),
        ([EqualTo(OFFSET, 5), IsNotNull(OFFSET)], RowBounds(5, 6)),
        ([GreaterThan(TIMESTAMP, NOON)], RowBounds(first_timestamp_us=NOON_US + 1)),
        (
            [GreaterThanOrEqual(TIMESTAMP, NOON), LessThan(TIMESTAMP, NOON)],
            RowBounds(first_timestamp_us=NOON_US, last_timestamp_us=NOON_US - 1),
        ),
    ],
)
def test_bounds(filters: list[Filter], bounds: RowBounds) -> None:
    wanted, left = Wanted().with_filters(filters)
    assert wanted.bounds == bounds
    assert left == []


def test_topics_and_partitions() -> None:
    wanted, left = Wanted().with_filters(
        [EqualTo(TOPIC, "a"), In(PARTITION, (1, 2)), GreaterThan(PARTITION, 1)]
    )
    assert left == []
    assert wanted.has("a", 2)
    assert not wanted.has("a", 1)
    assert not wanted.has("b", 2)


def test_options_that_spark_handles() -> None:
    others = [
        EqualTo(("key",), b"k"),
        Not(EqualTo(OFFSET, 3)),
        In(OFFSET, (1, 2)),
        IsNull(OFFSET),
        IsNotNull(("value",)),
        StringContains(TOPIC, "a"),
        EqualTo(("headers", "key"), "a"),
        EqualTo(TIMESTAMP, NOON.replace(tzinfo=None)),
        EqualTo(PARTITION, "1"),
        In(TOPIC, ("a", None)),
    ]
    wanted, left = Wanted().with_filters(others)
    assert wanted == Wanted()
    assert left == others


def test_options_as_the_connector_takes_them() -> None:
    options = parse_options(
        {
            "path": "/a, /b",
            "subscribe": "t,u",
            "Columns": "OFFSET,key",
            "startingOffsets": '{"t": {"0": 7, "1": -1}}',
            "checkCrcs": "false",
            "storage.region": "here",
        }
    )
    assert options.roots == ("/a", "/b")
    assert options.topics == ("t", "u")
    assert options.columns == ("offset", "key")
    assert [options.starting_offsets.of("t", p, 3, 9) for p in range(3)] == [7, 9, 3]
    assert options.ending_offsets == OffsetsOption(-1)
    assert not options.check_crcs
    assert options.storage_settings == {"region": "here"}
    assert parse_options({"paths": '["/x"]'}).columns == tuple(COLUMNS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "no segments are named"),
        ({"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"subscribePattern": "("}, "is not a"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"columns": "key,age"}, "no column 'age'"),
        ({"isolationLevel": "dirty"}, "not 'dirty'"),
        ({"startingOffsets": "{"}, "startingOffsets must be earliest, latest or JSON"),
        ({"startingOffsets": '{"t": 5}'}, "startingOffsets must be earliest, latest or JSON"),
        ({"endingOffsets": '{"t": {"0": -3}}'}, "-3 is not a valid offset of t-0"),
        ({"splitBytes": "0"}, "splitBytes must be a number of bytes, not '0'"),
        ({"checkCrcs": "yes"}, "checkCrcs must be true or false"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        parse_options({"path": "/data", **options})
