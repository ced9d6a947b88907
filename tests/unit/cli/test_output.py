"""Tables on a terminal and for other programs."""

from __future__ import annotations

import pytest

from tidelog.cli import output

ROWS = [("a [bold]b", 1), (None, 20)]


def test_a_pipe_gets_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "#count"), ROWS, title="not shown")
    assert capsys.readouterr().out == "name\tcount\na [bold]b\t1\n\t20\n"


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tidelog.cli.output", "tidelog.process.output_format"):
        monkeypatch.setattr(f"{module}.is_terminal", lambda: True)
    output.print_table(("name", "#count"), ROWS, title="Things")
    output.print_heading("[x]", " [y]")
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "Things"
    assert " a [bold]b       1" in shown
    assert "                20" in shown
    assert shown[-1] == "[x] [y]"
