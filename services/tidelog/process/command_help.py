"""The help of commands: examples in it, groups of commands, and suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

import click

from tidelog.process.limited_numbers import with_limits_in_words

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
