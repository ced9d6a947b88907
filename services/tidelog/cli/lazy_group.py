"""A click group that imports a subcommand only when it is used, so that every command starts fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands. `places` maps each subcommand to its click command, as `package.module:name`."""

    def __init__(self, *args: Any, places: Mapping[str, str], **options: Any) -> None:  # of click.Group
        super().__init__(*args, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command
