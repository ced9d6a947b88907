"""The texts that `tidelog group reset-offsets` reads and writes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tidelog.cli.admin.group import command
from tidelog.cli.admin.group_offsets import (
    offsets_csv,
    parse_choice,
    parse_datetime,
    parse_duration_ms,
    parse_offsets_csv,
)
from tidelog.cli.tool_command import ToolError
from tidelog.model.topics import TopicPartition

ROWS = [("g", TopicPartition("t", 0), 5), ("g", TopicPartition("u", 2), 0)]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01.500Z", 1_500),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T00:00:00-02:30", 9_000_000),
    ],
)
def test_times_are_in_utc_unless_they_have_a_zone(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-01-31", "2026-02-30T00:00:00.000", "2026-01-31 08:00"]
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ToolError, match="--to-datetime"):
        parse_datetime(text)


@pytest.mark.parametrize(
    "text", ["1969-12-31T23:59:59.999", "1970-01-01T00:59:59.999+01:00", "0001-01-01T00:00:00.000"]
)
def test_a_time_before_1970_is_refused_because_it_could_mean_the_end(text: str) -> None:
    with pytest.raises(ToolError, match="must not be before 1970-01-01T00:00:00Z"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P7D", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("pt0.25s", 250),
        ("P1DT-1H", 82_800_000),
        ("-PT1S", -1_000),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "7D", "P1M", "P1Y", "1h", "P1H"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ToolError, match="--by-duration"):
        parse_duration_ms(text)


def test_topics_and_partitions() -> None:
    assert parse_choice("t") == ("t", None)
    assert parse_choice("t:0,12") == ("t", (0, 12))
    for text in ("", ":1", "t:", "t:1,x", "t:-1"):
        with pytest.raises(ToolError, match="--topic"):
            parse_choice(text)


def test_exported_offsets_are_read_again() -> None:
    offsets = {TopicPartition("t", 0): 5, TopicPartition("u", 2): 0}
    assert offsets_csv(ROWS, has_one_group=True) == "t,0,5\nu,2,0\n"
    assert offsets_csv(ROWS, has_one_group=False) == "g,t,0,5\ng,u,2,0\n"
    assert parse_offsets_csv("t,0,5\nu,2,0\n", ["g"]) == {"g": offsets}
    assert parse_offsets_csv('g,t,0,5\n"g",u,2,0\nother,t,0,1\n', ["g", "h"]) == {"g": offsets}


@pytest.mark.parametrize("line", ["t,0", "t,x,5", "t,0,-5", "g,t,0,5,6"])
def test_an_invalid_line_is_named(line: str) -> None:
    with pytest.raises(ToolError, match="line 2 of the file"):
        parse_offsets_csv(f"t,0,1\n{line}\n", ["g"])
    with pytest.raises(ToolError, match="line 1 of the file"):
        parse_offsets_csv("t,0,1\n", ["g", "h"])
    with pytest.raises(ToolError, match="line 3 of the file of offsets has another offset of t-0"):
        parse_offsets_csv("t,0,1\nt,0,1\nt,0,2\n", ["g"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "t", "--to-earliest"], "Give a group, or --all-groups."),
        (["g", "--to-earliest"], "Give either --topic"),
        (["g", "--topic", "t", "--all-topics", "--to-earliest"], "Give either --topic"),
        (["g", "--topic", "t"], "Give one of --to-earliest, --to-latest"),
        (["g", "--topic", "t", "--to-earliest", "--shift-by", "0"], "Give one of --to-earliest"),
        (["g", "--topic", "t", "--to-latest", "--execute", "--dry-run"], "either --execute or --dry-run"),
    ],
)
def test_contradicting_options_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["reset-offsets", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_the_message_names_only_options_that_the_command_has() -> None:
    result = CliRunner().invoke(command, ["delete-offsets", "--topic", "t"])
    assert result.exit_code == 2
    assert "Give a group." in result.output
