"""Records as templates, JSON and columns."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.data.consume import command
from tidelog.cli.data.record_formats import ColumnFormat, JsonFormat, TemplateFormat
from tidelog.cli.tool_command import ToolError
from tidelog.observe.number_texts import iso_time
from tidelog.records.record import Record

RECORD = Record(5, 1_700_000_000_123, b"k", b"\xff\x00", (("h", b"1"), ("i", None)))
EMPTY = Record(6, -1, None, None)


def test_a_template_contains_all_parts() -> None:
    template = TemplateFormat(r"%t %p %o %k %v %s %h %T %K %S %%\n\t\x41\\", "flights")
    assert template.line_of(RECORD, 3) == (
        b"flights 3 5 k \xff\x00 \xff\x00 h=1,i= 1700000000123 1 2 %\n\tA\\"
    )
    assert template.line_of(EMPTY, 0) == b"flights 0 6     -1 -1 -1 %\n\tA\\"
    assert TemplateFormat("%k|%v|%h", "t", null=b"NULL").line_of(EMPTY, 0) == b"NULL|NULL|"


@pytest.mark.parametrize("template", ["%z", "100%", r"\q", "end\\", "%%%"])
def test_an_unknown_part_is_refused(template: str) -> None:
    with pytest.raises(ToolError, match="is not one of %t"):
        TemplateFormat(template, "t")


@given(st.text(alphabet=st.characters(exclude_characters="%\\", exclude_categories=["Cs"])))
def test_other_text_is_printed_as_it_is(text: str) -> None:
    assert TemplateFormat(text, "t").line_of(RECORD, 0) == text.encode()


@given(
    st.none() | st.binary(), st.none() | st.binary(), st.lists(st.tuples(st.text(), st.none() | st.binary()))
)
def test_each_record_is_one_line_of_json(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = JsonFormat("t").line_of(Record(7, 1, key, value, tuple(headers)), 2)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert (found["topic"], found["partition"], found["offset"], found["timestamp"]) == ("t", 2, 7, 1)
    assert isinstance(found["key"], str | dict | None)
    for text, content in [(found["key"], key), (found["value"], value)]:
        if isinstance(text, str):
            assert text.encode() == content
    assert [header["key"] for header in found["headers"]] == [name for name, _ in headers]


def test_json_of_null_and_of_bytes_that_are_no_text() -> None:
    found = json.loads(JsonFormat("t").line_of(RECORD._replace(omitted_headers=3), 0))
    assert (found["value"], found["omitted_headers"]) == ({"base64": "/wA="}, 3)
    assert found["headers"] == [{"key": "h", "value": "1"}, {"key": "i", "value": None}]
    assert json.loads(JsonFormat("t").line_of(EMPTY, 0))["timestamp"] is None


def test_columns_are_single_lines_without_control_characters() -> None:
    line = ColumnFormat().line_of(Record(5, 0, b"k", b"a\nb\x1b[31m" + b"x" * 1000), 3).decode()
    assert line.startswith("        3           5  1970-01-01T00:00:00.000Z  k ")
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert len(line) < 140


def test_times() -> None:
    assert iso_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso_time(-1) == iso_time(2**62) == "-"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t", "-f", "%v", "--format", "json"], "either -f or --format"),
        (["t", "--group", "g", "--partition", "0"], "neither --partition nor --offset"),
        (["t", "--group", "g", "--offset", "latest"], "neither --partition nor --offset"),
    ],
)
def test_contradicting_options_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.output
