"""A click group that imports a subcommand only when it is used, so that every command starts fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tidelog.process.command_help import SuggestingGroup

_OTHERS: Final = "Other commands"


class LazyGroup(SuggestingGroup):
    """A group of commands.

    `places` maps each subcommand to its click command, as `package.module:name`. `sections` arranges the
    subcommands in the group's help: each section maps names to one line. So the help needs no imports.
    """

    def __init__(
        self,
        *args: Any,  # of click.Group
        places: Mapping[str, str],
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._places = places
        self.sections = sections or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns subcommands without importing them, and options."""
        lines = {name: line for section in self.sections.values() for name, line in section.items()}
        found = [
            CompletionItem(name, help=lines.get(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        arranged = {name for section in self.sections.values() for name in section}
        others = {
            name: found.get_short_help_str()
            for name in self.list_commands(ctx)
            if name not in arranged and (found := self.get_command(ctx, name)) is not None
        }
        for title, section in {**self.sections, _OTHERS: others}.items():
            rows = [(name, line) for name, line in section.items() if name in self._places]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=20)
