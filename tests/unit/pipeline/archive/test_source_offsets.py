"""Offsets of checkpoints and missing parts of ranges, without Spark."""

from __future__ import annotations

import json

import pytest

from tidelog.client.admin.logs import OffsetRange
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.archive.spec import (
    cut_back,
    missing_ranges,
    parse_offsets,
    ranges_between,
    starting_json,
    without,
)
from tidelog.pipeline.errors import PipelineError

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_offsets_are_read_as_spark_4_writes_them() -> None:
    batch = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"a":{"0":100,"1":0},"b":{"0":7}}'
    assert parse_offsets(batch) == {A0: 100, A1: 0, B0: 7}
    assert parse_offsets('\x00v1\n{"a":{"0":5}}') == {A0: 5}


@pytest.mark.parametrize("text", ["", "v1", "v1\n[]", 'v1\n{"a":{"x":1}}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="cannot be parsed"):
        parse_offsets(text)


def test_a_batch_contains_the_records_since_the_previous_one() -> None:
    assert ranges_between({A0: 10, A1: 5}, {A0: 20, A1: 5, B0: 3}) == {
        A0: OffsetRange(10, 20),
        B0: OffsetRange(0, 3),
    }


def test_deleted_ranges_are_reported_exactly_and_the_rest_remains() -> None:
    ranges = {A0: OffsetRange(100, 250), A1: OffsetRange(10, 20), B0: OffsetRange(0, 5)}
    missing = missing_ranges(ranges, {A0: 180, A1: 30, B0: 0})
    assert [str(each) for each in missing] == ["a-0: 80 offsets, 100 to 179", "a-1: 10 offsets, 10 to 19"]
    assert without(ranges, missing) == {A0: OffsetRange(180, 250), B0: OffsetRange(0, 5)}


def test_a_log_that_is_shorter_than_what_was_planned_is_found() -> None:
    (cut,) = cut_back({A0: OffsetRange(100, 250), A1: OffsetRange(0, 5)}, {A0: 120, A1: 5})
    assert (cut.start, cut.end) == (120, 250)
    (cut,) = cut_back({A0: OffsetRange(100, 0)}, {A0: 0})  # a topic that was created again
    assert (cut.start, cut.end) == (0, 100)


def test_starting_offsets_name_every_partition() -> None:
    assert json.loads(starting_json({A0: 12}, [A0, A1])) == {"a": {"0": 12, "1": -2}}
