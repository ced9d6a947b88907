"""`tidelog kubernetes`: what the chart's init containers and hook Jobs run, and people who tend a release.

Only this package imports the official `kubernetes` client (extra `kubernetes`). Decisions are in modules
without I/O (`roll_order`, `volume_growth`, ...), `api_server` asks the API server, the commands join them.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType
from typing import Final, NoReturn

import click

_COMMANDS: Final = {
    "address": ("tidelog.cli.kubernetes.address", "command"),
    "prepare": ("tidelog.cli.kubernetes.prepare", "command"),
    "rack": ("tidelog.cli.kubernetes.rack", "command"),
    "roll": ("tidelog.cli.kubernetes.roll", "command"),
    "wait-ready": ("tidelog.cli.kubernetes.roll", "wait_ready"),
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
    """What a release on Kubernetes needs beside its services."""
    if os.getpid() == 1:  # the kernel withholds SIGTERM from a container's first process that has no handler
        signal.signal(signal.SIGTERM, _ended)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
