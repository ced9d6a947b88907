"""The question before a command deletes what can't be restored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import click

from tidelog.cli.tool_command import ToolError

_YES_KEY: Final = "tidelog.yes"

F = TypeVar("F", bound=Callable[..., object])


def asks_first(command: F) -> F:
    """Adds --yes, which `confirm` reads."""
    return click.option(
        "--yes",
        is_flag=True,
        expose_value=False,
        callback=_note_yes,
        help="Do not ask first. Without a terminal, nothing is asked.",
    )(command)


def confirm(question: str, *, refusal: str = "") -> None:
    """Asks the question on a terminal, unless --yes is given. Raises ToolError if the answer is no.

    Without a terminal there is no question, so that scripts do not hang. With `refusal`, the command then
    needs --yes, and ToolError says so.
    """
    if click.get_current_context().meta.get(_YES_KEY):
        return
    if not is_interactive():
        if refusal:
            raise ToolError(f"{refusal}; nothing was changed. --yes does it nevertheless.")
        return
    if not click.confirm(question, err=True):
        raise ToolError("nothing was changed, because the answer was not yes")


def is_interactive() -> bool:
    """Returns whether somebody can be asked: input and messages go to a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _note_yes(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        context.meta[_YES_KEY] = True
