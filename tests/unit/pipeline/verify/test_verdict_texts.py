"""The texts and the JSON of a verdict."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.pipeline.commands.tables import print_verdict
from tidelog.pipeline.verify.verdict import PartitionVerdict, Problem, Verdict, report_html

SOUND = PartitionVerdict("t", 0, 0, 2000, rows=1990, holes={"marker": 4, "abort": 6}, only_in_ledger=7)
FAULTY = PartitionVerdict(
    "t", 1, 0, 100, rows=96, lost=2, duplicated=3, changed=1, unexplained=5, holes={"compaction": 0}
)
LOST = Problem("lost", "t-1: offsets 0-99: no row of 2 records, offsets <3>, 4", "t", 1)


def test_the_report_has_a_summary_line() -> None:
    verdict = Verdict((SOUND, FAULTY), (LOST,))
    assert verdict.line() == (
        "rows 2,086, lost 2, duplicated 3, changed 1, holes 10 explained (marker 4, abort 6), 5 not"
    )
    assert not verdict.is_complete
    assert Verdict((SOUND,), ()).is_complete
    assert Verdict((), ()).line() == "rows 0, lost 0, duplicated 0, changed 0, holes 0 explained"


def test_programs_get_the_same_as_json() -> None:
    told = json.loads(Verdict((SOUND, FAULTY), (LOST,)).to_json())
    assert (told["complete"], told["rows"], told["lost"], told["unexplained"]) == (False, 2086, 2, 5)
    assert told["holes"] == {"marker": 4, "abort": 6}
    assert told["problems"] == [{"kind": "lost", "text": LOST.text, "topic": "t", "partition": 1}]
    assert told["partitions"][0]["only_in_ledger"] == 7


def test_another_program_sees_problems_and_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_verdict("lake/[t]", Verdict((FAULTY,), (LOST,) * 60))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == LOST.text
    assert lines[50] == "... and 10 more problems: --json lists all"
    assert lines[51].startswith("lake/[t]: NOT complete: rows 96, lost 2")


def test_the_page_shows_each_offset_once_and_no_markup_of_names() -> None:
    page = report_html("lake/<t>", "the brokers", Verdict((SOUND, FAULTY), (LOST,)))
    assert 'lake/&lt;t&gt; is <span class="incomplete">not complete' in page
    assert "offsets &lt;3&gt;, 4" in page
    assert 'title="rows: 1,990" style="width:99.500%' in page
    assert 'title="missing: 7" style="width:7.000%' in page, "93 rows that aren't copies"
    assert "What is wrong" not in report_html("t", "x", Verdict((SOUND,), ()))


def test_options_that_exclude_each_other_are_refused() -> None:
    result = CliRunner().invoke(main, ["pipeline", "verify", "t", "--storage-set", "a=b"])
    assert (result.exit_code, result.output) == (
        1,
        "tidelog: --storage-set is for an object store; name its files with --segments\n",
    )
