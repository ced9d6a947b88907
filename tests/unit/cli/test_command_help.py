"""The help of all commands, their examples, suggestions for mistyped names, and completion."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from tidelog.cli.command_line import LazyGroup
from tidelog.cli.completion import ExistingName, known_names, topic_names
from tidelog.cli.main import main
from tidelog.client.security import NO_SECURITY
from tidelog.process.command_help import DescribedCommand, did_you_mean


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Returns all commands that are no groups, with their names as on the command line."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


COMMANDS = dict(leaves(main))
COMPARISON = Path(__file__).parents[3] / "docs/cli-comparison.md"


WITHOUT_DATA = {
    # Commands that serve until they are stopped, or whose output is a script.
    *("dev", "broker", "controller", "group-coordinator", "console", "pipeline connect-server"),
    "completion",
}


def test_every_command_that_prints_data_has_the_three_formats() -> None:
    formats = {
        name: next((list(each.type.choices) for each in command.params if "--format" in each.opts), None)
        for name, command in COMMANDS.items()
    }
    assert {name for name, found in formats.items() if found is None} == WITHOUT_DATA
    assert all({"table", "plain", "json"} <= set(found) for found in formats.values() if found)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_that_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS[name]
    assert isinstance(command, DescribedCommand), "use cls=ToolCommand or cls=DescribedCommand"
    assert command.examples, "give the command examples="
    shown = CliRunner().invoke(command, ["--help"]).output
    for parameter in command.params:
        if isinstance(parameter.type, (click.Path, click.File)):  # the files of examples do not exist
            monkeypatch.setattr(parameter, "type", click.STRING)
    for example in command.examples:
        assert f"  {example}\n" in shown
        words = shlex.split(example.partition("|")[2] or example, comments=True)
        if words[0] == "eval":
            words = shlex.split(words[1].strip("$()"))
        until = next((index for index, word in enumerate(words) if word in "<>"), len(words))
        assert " ".join(words).startswith(f"tidelog {name}")
        command.make_context(name, words[1 + len(name.split()) : until])


def test_the_commands_of_the_comparison_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `tidelog ...` in docs/cli-comparison.md is a command with options that it has."""
    spans = re.findall(r"`tidelog ([^`]+)`", COMPARISON.read_text())
    assert len(spans) > 40
    for span in spans:
        words = [word for word in shlex.split(span) if word != "..."]
        names = [n for n in (" ".join(words[:2]), words[0]) if n in COMMANDS]
        assert names, span
        command = COMMANDS[names[0]]
        for parameter in command.params:
            if isinstance(parameter.type, (click.Path, click.File)):
                monkeypatch.setattr(parameter, "type", click.STRING)
        arguments = words[len(names[0].split()) :]
        if arguments:  # a bare name stands for the command as a whole
            command.make_context(names[0], arguments)


def test_the_help_arranges_all_commands_in_sections() -> None:
    arranged = {name: line for section in main.sections.values() for name, line in section.items()}
    assert sorted(arranged) == main.list_commands(click.Context(main))
    for name, line in arranged.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert line == command.get_short_help_str(limit=200) or line in (command.help or "").split("\n\n")[0]
    shown = run("--help").output
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[1:7] == ["Run:", "Topics:", "Groups:", "Cluster:", "Data:", "Users:"]


def test_a_command_without_a_section_is_shown_as_well() -> None:
    group = LazyGroup("g", places={"dlq": "tidelog.cli.admin.dlq:command"}, sections={"Run": {}})
    assert "Other commands:\n  dlq  Show the dead letters" in CliRunner().invoke(group, ["--help"]).output


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["topc", "list"], "No such command 'topc'. Did you mean 'topic' or 'top'?"),
        (["topic", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["cluster", "descrbe"], "No such command 'descrbe'. Did you mean 'describe'?"),
        (["topic", "list", "--bootstrap-servr", "x"], "'--bootstrap-server'?"),
        (["xyzzy"], "No such command 'xyzzy'.\n"),
    ],
)
def test_mistyped_commands_and_options(arguments: list[str], suggestion: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert suggestion in result.stderr


def test_suggestions_name_the_most_similar_first() -> None:
    assert did_you_mean("lst", ["list"]) == " Did you mean 'list'?"
    assert did_you_mean("fligths", ["flights", "flight", "x"]) == " Did you mean 'flights' or 'flight'?"
    assert did_you_mean("x", ["flights"]) == ""


def test_a_suggestion_does_not_repeat_the_name() -> None:
    assert did_you_mean("flights", ["flights"]) == ""
    assert did_you_mean("flights", ["flights", "flight"]) == " Did you mean 'flight'?"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert f"_TIDELOG_COMPLETE={shell}_complete" in run("completion", shell).stdout


def completions(words: list[str], incomplete: str) -> list[str]:
    items = BashComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in items]


def test_commands_are_completed() -> None:
    assert completions([], "to") == ["top", "topic"]
    assert completions(["topic"], "de") == ["delete", "describe"]
    assert completions(["cluster"], "st") == ["start", "status"]
    assert "--format" in completions(["topic", "list"], "--f")
    assert completions(["topic", "list", "--format"], "j") == ["json"]


def test_completion_is_silent_without_a_broker() -> None:
    assert known_names("127.0.0.1:1", NO_SECURITY, topic_names) == []
    assert known_names("nonsense", NO_SECURITY, topic_names) == []
    assert completions(["topic", "describe", "-b", "127.0.0.1:1"], "f") == []


def test_topics_and_groups_are_completed_wherever_they_are_named() -> None:
    named = {
        name
        for name, command in COMMANDS.items()
        if any(isinstance(parameter.type, ExistingName) for parameter in command.params)
    }
    assert {"topic describe", "topic delete", "group describe", "offsets", "produce", "consume"} <= named


def test_the_help_imports_no_commands() -> None:
    code = (
        "import sys; from tidelog.cli.main import main; main(['--help'], standalone_mode=False);"
        "assert not [m for m in sys.modules if m.startswith(('tidelog.broker', 'tidelog.client', 'rich'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
