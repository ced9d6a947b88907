"""`tidelog kubernetes`: commands for the chart's init containers and Jobs, and for operators of a release.

Only this package imports the official `kubernetes` client (extra `kubernetes`). Modules without I/O make the
decisions (`roll_order`, `volume_growth`, ...), `api_server` calls the API server, and the commands connect
them.
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
    "password-secret": "tidelog.cli.kubernetes.password_secret:command",
    "prepare": "tidelog.cli.kubernetes.prepare:command",
    "rack": "tidelog.cli.kubernetes.rack:command",
    "roll": "tidelog.cli.kubernetes.roll:command",
    "users": "tidelog.cli.kubernetes.users:command",
    "wait-ready": "tidelog.cli.kubernetes.roll:wait_ready",
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def command() -> None:
    """Manage a release on Kubernetes."""
    if os.getpid() == 1:  # the kernel drops SIGTERM for a container's first process unless it has a handler
        signal.signal(signal.SIGTERM, _ended)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
