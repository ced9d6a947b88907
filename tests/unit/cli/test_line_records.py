"""The conversion of lines to records."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.produce import LineFormat, LineSplitter
from tidelog.cli.tool_command import ToolError
from tidelog.records.record import Record


def test_a_line_is_a_value() -> None:
    assert LineFormat().record_of(b"a\tb", 7, 1) == Record(0, 7, None, b"a\tb")


def test_key_value_and_headers() -> None:
    line_format = LineFormat(
        parses_key=True, parses_headers=True, key_separator="::", headers=(("all", b"1"),)
    )
    record = line_format.record_of(b"h:x,i:y:z\tk::v::w", 7, 1)
    assert record == Record(0, 7, b"k", b"v::w", (("all", b"1"), ("h", b"x"), ("i", b"y:z")))
    assert line_format.record_of(b"\t::", 7, 1) == Record(0, 7, b"", b"", (("all", b"1"),))


def test_the_null_marker() -> None:
    line_format = LineFormat(parses_key=True, parses_headers=True, null_marker="NULL")
    assert line_format.record_of(b"NULL\tNULL\tNULL", 7, 1) == Record(0, 7, None, None)
    assert line_format.record_of(b"h:NULL\tk\tNULLS", 7, 1) == Record(0, 7, b"k", b"NULLS", (("h", None),))


@pytest.mark.parametrize(
    ("line", "part"),
    [(b"k v", "has no headers"), (b"h:1\tv", "has no key"), (b"h\tk\tv", "has no header value")],
)
def test_an_incomplete_line_is_named(line: bytes, part: str) -> None:
    with pytest.raises(ToolError, match=f"line 12 {part}"):
        LineFormat(parses_key=True, parses_headers=True).record_of(line, 7, 12)


@given(st.lists(st.binary(max_size=8).filter(lambda b: b"\n" not in b and not b.endswith(b"\r"))), st.data())
def test_lines_are_complete_for_any_division_of_the_input(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + data.draw(st.sampled_from([b"\n", b"\r\n"])) for line in lines)
    splitter = LineSplitter(1 << 20)
    found: list[bytes] = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        found += splitter.lines(text[:size])
        text = text[size:]
    found += splitter.lines(b"")
    assert found == lines


def test_a_last_line_without_end_counts() -> None:
    splitter = LineSplitter(100)
    assert splitter.lines(b"a\nb") + splitter.lines(b"") + splitter.lines(b"") == [b"a", b"b"]


def test_the_time_for_a_long_line_is_proportional_to_its_length() -> None:
    """Each chunk of 64 KiB copied the whole line before it, so a line of 60 MB took minutes."""
    splitter = LineSplitter(1 << 22)
    chunk = b"x" * 1024
    began_s = time.process_time()
    for _ in range(1 << 12):
        assert splitter.lines(chunk) == []
    assert splitter.lines(b"\n") == [chunk * (1 << 12)]
    assert time.process_time() - began_s < 1


def test_an_endless_line_is_refused() -> None:
    splitter = LineSplitter(10)
    assert splitter.lines(b"a\nb\n" + b"x" * 11) == [b"a", b"b"], "the lines before it are lost"
    with pytest.raises(ToolError, match="line 3 is longer than 10 bytes"):
        splitter.lines(b"")
