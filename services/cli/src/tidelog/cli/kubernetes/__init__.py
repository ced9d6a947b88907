"""`tidelog kubernetes`: what the chart's init containers and hook Jobs run, and people who tend a release.

Only this package imports the official `kubernetes` client (extra `kubernetes`). Decisions are in modules
without I/O (`roll_order`, `volume_growth`, ...), `api_server` asks the API server, the commands join them.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final, NoReturn

import click
from tidelog.cli.lazy_group import LazyGroup

_COMMANDS: Final = {
    "address": "tidelog.cli.kubernetes.address:command",
    "prepare": "tidelog.cli.kubernetes.prepare:command",
    "rack": "tidelog.cli.kubernetes.rack:command",
    "roll": "tidelog.cli.kubernetes.roll:command",
    "wait-ready": "tidelog.cli.kubernetes.roll:wait_ready",
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def command() -> None:
    """What a release on Kubernetes needs beside its services."""
    if os.getpid() == 1:  # the kernel withholds SIGTERM from a container's first process that has no handler
        signal.signal(signal.SIGTERM, _ended)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
