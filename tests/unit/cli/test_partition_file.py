"""The JSON files of Kafka's tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.cli.tool_command import ToolError, parse_partition_rows, read_text_file
from tidelog.model.topics import TopicPartition


def test_rows_by_partition() -> None:
    given = [{"topic": "t", "partition": 0, "offset": 9}, {"topic": "t", "partition": 2, "offset": -1}]
    rows = parse_partition_rows(json.dumps({"partitions": given}), "f", ("offset",))
    assert {place: row["offset"] for place, row in rows.items()} == {
        TopicPartition("t", 0): 9,
        TopicPartition("t", 2): -1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f is not JSON"),
        ("[" * 100_000, "f is not JSON"),
        ("[]", 'f has no list "partitions"'),
        ('{"partitions": {}}', 'f has no list "partitions"'),
        ('{"partitions": []}', "f contains no partitions"),
        ('{"version": 2, "partitions": []}', "f has version 2"),
        ('{"partitions": [1]}', "1 in .* is not an object"),
        ('{"partitions": [{"partition": 0, "offset": 1}]}', 'has no text "topic"'),
        ('{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}', 'has no number "partition"'),
        ('{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}', 'has no number "partition"'),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', 'has no number "offset"'),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": 1},'
            ' {"topic": "t", "partition": 0, "offset": 2}]}',
            "f contains t-0 twice",
        ),
    ],
)
def test_the_fault_of_a_file_is_named(text: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_partition_rows(text, "f", ("offset",))


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ToolError, match=r"--x .*binary: the file is not UTF-8 text"):
        read_text_file("--x", tmp_path / "binary")
    with pytest.raises(ToolError, match=r"--x .*missing: No such file"):
        read_text_file("--x", tmp_path / "missing")
