"""`tidelog cluster`: clusters of processes on this machine, and what there is to know of any cluster."""

from __future__ import annotations

import importlib
from typing import Final

import click

_COMMANDS: Final = {
    "check": ("tidelog.cli.cluster_check", "command"),
    "describe": ("tidelog.cli.cluster_describe", "command"),
    "down": ("tidelog.cli.cluster_tend", "down"),
    "kill": ("tidelog.cli.cluster_tend", "kill"),
    "recover": ("tidelog.cli.cluster_recover", "command"),
    "start": ("tidelog.cli.cluster_tend", "start"),
    "status": ("tidelog.cli.cluster_status", "command"),
    "up": ("tidelog.cli.cluster_up", "command"),
}
"""Subcommand -> module and name in it; imported when it is used."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(importlib.import_module(place[0]), place[1])
        return command


@click.group(cls=_LazyGroup)
def command() -> None:
    """Start and tend clusters on this machine; describe any cluster."""
