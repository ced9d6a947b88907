"""The conversion of options to values, and of records to lines."""

from __future__ import annotations

import pytest

from tidelog.cli.admin.config import parse_additions
from tidelog.cli.admin.offsets import parse_partitions, parse_time
from tidelog.cli.data.consume import RecordFormat, with_properties
from tidelog.cli.data.perf import percentile
from tidelog.records.record import Record

RECORD = Record(5, 1_700_000_000_000, b"k", b"v", (("h", b"1"), ("i", None)))


def test_all_parts_of_a_record_can_be_printed() -> None:
    everything = RecordFormat(True, True, True, True, True)
    assert everything.line_of(RECORD, 3) == (
        b"CreateTime:1700000000000\tPartition:3\tOffset:5\th:1,i:null\tk\tv\n"
    )
    cut = RECORD._replace(omitted_headers=9_999_998)
    assert RecordFormat(prints_headers=True).line_of(cut, 3) == b"h:1,i:null,(9999998 more headers)\tv\n"
    bare = Record(0, -1, None, None)
    assert everything.line_of(bare, 0) == b"NO_TIMESTAMP\tPartition:0\tOffset:0\tNO_HEADERS\tnull\tnull\n"
    assert RecordFormat().line_of(RECORD, 3) == b"v\n"


def test_bytes_are_printed_as_they_are() -> None:
    assert RecordFormat().line_of(Record(0, 0, None, b"\xff\x00"), 0) == b"\xff\x00\n"


def test_properties_of_kafkas_tool() -> None:
    given = ("print.key=true", "print.value=false", "key.separator=|", "line.separator=;", "null.literal=-")
    changed = with_properties(RecordFormat(), given)
    assert changed.line_of(Record(0, 0, None, b"v"), 0) == b"-;"
    assert with_properties(changed, ("print.value=true",)).line_of(RECORD, 0) == b"k|v;"


def test_additions_keep_commas_in_brackets() -> None:
    found = [
        (change.name, change.value) for change in parse_additions("a=1,cleanup.policy=[compact,delete],b=")
    ]
    assert found == [("a", "1"), ("cleanup.policy", "compact,delete"), ("b", "")]


def test_times_and_partitions() -> None:
    assert [parse_time(text) for text in ("latest", "earliest", "max-timestamp", "-1", "1700")] == [
        -1,
        -2,
        -3,
        -1,
        1700,
    ]
    assert [list(part) for part in parse_partitions("0,3-5")] == [[0], [3, 4, 5]]


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 2), (75, 3), (99.9, 4), (100, 4)])
def test_percentiles(percent: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == expected
