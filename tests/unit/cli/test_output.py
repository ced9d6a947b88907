"""Tables on a terminal and for other programs."""

from __future__ import annotations

import pytest

from tidelog.cli import output

ROWS = [("a [bold]b", 1), (None, 20)]


def test_a_pipe_gets_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "#count"), ROWS, title="not shown")
    assert capsys.readouterr().out == "name\tcount\na [bold]b\t1\n\t20\n"


def test_a_terminal_gets_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tidelog.cli.output", "tidelog.process.command_help"):
        monkeypatch.setattr(f"{module}.is_terminal", lambda: True)
    output.print_table(("name", "#count"), ROWS, title="Things")
    output.print_heading("[x]", " [y]")
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "Things"
    assert " a [bold]b       1" in shown
    assert "                20" in shown
    assert shown[-1] == "[x] [y]"


@pytest.mark.parametrize("is_shown", [False, True])
def test_names_that_clients_choose_do_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    for module in ("tidelog.cli.output", "tidelog.process.command_help"):
        monkeypatch.setattr(f"{module}.is_terminal", lambda: is_shown)
    name = "evil\x1b[2J\nfake\t1"
    output.print_table(("name", "names"), [(name, [name])])
    output.print_heading("Group ", name)
    output.say(f"Deleted {name}")
    output.note(f"Group {name} is empty")
    for text in capsys.readouterr():
        assert "\x1b[2J" not in text
        assert "evil\\x1b[2J" in text


def test_a_cell_with_a_line_end_or_a_tab_stays_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "#count"), [("a\tb\nc", 1)])
    assert capsys.readouterr().out == "name\tcount\na\\tb\\nc\t1\n"
