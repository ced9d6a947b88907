"""`tidelog kubernetes`: commands for the chart's init containers and Jobs, and for operators of a release.

Only this package imports the official `kubernetes` client (extra `kubernetes`). `upgrade_plan` decides
without I/O, `api_server` calls the API server, `release` reads and changes the objects, and the commands
connect them.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final, NoReturn

import click

from tidelog.cli.command_line import LazyGroup

_COMMANDS: Final = {
    "address": "tidelog.cli.kubernetes.init_containers:write_address",
    "password-secret": "tidelog.cli.kubernetes.users:create_secrets",
    "prepare": "tidelog.cli.kubernetes.upgrade:prepare",
    "rack": "tidelog.cli.kubernetes.init_containers:write_rack",
    "roll": "tidelog.cli.kubernetes.upgrade:roll",
    "users": "tidelog.cli.kubernetes.users:create_users",
    "wait-ready": "tidelog.cli.kubernetes.upgrade:wait_ready",
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def command() -> None:
    """Manage a release on Kubernetes."""
    if os.getpid() == 1:  # the kernel drops SIGTERM for a container's first process unless it has a handler
        signal.signal(signal.SIGTERM, _ended)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
