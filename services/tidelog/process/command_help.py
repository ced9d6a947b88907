"""Common parts of commands: help with examples, groups, suggestions for mistyped names, --format, and numbers
whose limits are told in words.
"""

from __future__ import annotations

import difflib
import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeVar

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


MAX_SUGGESTIONS: Final = 3


class DescribedCommand(click.Command):
    """A command whose help ends with examples, and whose numbers have LimitedInt and LimitedFloat as types.

    Each example is a line for a shell. A comment after `#` may say what it does.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:  # of click.Command
        super().__init__(*args, **options)
        self.examples = tuple(examples)
        for parameter in self.params:
            parameter.type = with_limits_in_words(parameter.type)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Writes the section of examples. Lines are not wrapped, so that they can be copied."""
    if not examples:
        return
    with formatter.section("Examples"):
        for example in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class SuggestingGroup(click.Group):
    """A group of commands that answers a mistyped name with similar ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            _refuse(ctx, name, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def _refuse(context: click.Context, name: str, known: Iterable[str]) -> NoReturn:
    raise click.UsageError(f"No such command '{name}'.{did_you_mean(name, known)}", context)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'x'?` with the names that are most similar, or an empty text. `name` itself is
    not among them.
    """
    others = [each for each in known if each != name]
    similar = difflib.get_close_matches(name, others, MAX_SUGGESTIONS)
    if not similar:
        return ""
    *first, last = [f"'{each}'" for each in similar]
    return f" Did you mean {', '.join(first)}{' or ' if first else ''}{last}?"


class LimitedInt(click.IntRange):
    """An integer. Its error is one sentence with the limits, whether the text is no number or beyond them."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"Expected an integer, {self._describe_range()}, not '{value}'.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Overrides what click shows in the help, too."""
        return limits_text(self)


class LimitedFloat(click.FloatRange):
    """A number with a fraction. Its error is one sentence with the limits."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number: float = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"Expected a number, {self._describe_range()}, not '{value}'.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """Overrides what click shows in the help, too."""
        return limits_text(self)


def limits_text(of: click.IntRange | click.FloatRange) -> str:
    """Returns the limits in words, such as `at least 1` or `from 1 to 16`."""
    if of.min is not None and of.max is not None and not of.min_open and not of.max_open:
        return f"from {of.min} to {of.max}"
    texts = []
    if of.min is not None:
        texts.append(f"more than {of.min}" if of.min_open else f"at least {of.min}")
    if of.max is not None:
        texts.append(f"less than {of.max}" if of.max_open else f"at most {of.max}")
    return " and ".join(texts)


def with_limits_in_words(given: click.ParamType[Any]) -> click.ParamType[Any]:
    """Returns the type in place of a range of click, and any other type itself."""
    if type(given) is click.IntRange:
        return LimitedInt(given.min, given.max, given.min_open, given.max_open, given.clamp)
    if type(given) is click.FloatRange:
        return LimitedFloat(given.min, given.max, given.min_open, given.max_open, given.clamp)
    return given
