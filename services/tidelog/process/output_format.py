"""The option --format of commands, and the format that it selects."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

_FORMAT_KEY: Final = "tidelog.format"
F = TypeVar("F", bound=Callable[..., object])


class OutputFormat(enum.StrEnum):
    TABLE = "table"
    PLAIN = "plain"
    JSON = "json"


def format_option() -> click.Option:
    """Returns the option --format. `output_format` finds its value in the context."""
    return click.Option(["--format"], **_OPTION)


def with_format(command: F) -> F:
    """Adds --format, and --json, which means the same as --format json."""
    command = click.option(
        "--json", is_flag=True, expose_value=False, callback=_note_json, help="Same as --format json."
    )(command)
    return click.option("--format", **_OPTION)(command)


def output_format() -> OutputFormat:
    """Returns the format of the running command."""
    context = click.get_current_context(silent=True)
    chosen = None if context is None else context.meta.get(_FORMAT_KEY)
    if chosen is not None:
        return OutputFormat(chosen)
    return OutputFormat.TABLE if is_terminal() else OutputFormat.PLAIN


def is_terminal() -> bool:
    return sys.stdout.isatty()


def _note_format(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        context.meta[_FORMAT_KEY] = OutputFormat(name)


def _note_json(context: click.Context, parameter: click.Parameter, is_set: bool) -> None:
    if is_set:
        context.meta[_FORMAT_KEY] = OutputFormat.JSON


_OPTION: Final[dict[str, Any]] = {
    "type": click.Choice([str(each) for each in OutputFormat]),
    "expose_value": False,
    "callback": _note_format,
    "help": "Format of the output.  [default: table on a terminal, otherwise plain]",
}
