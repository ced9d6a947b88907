"""`tidelog cluster`: manages clusters of processes on this machine, and describes any cluster."""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli.lazy_group import LazyGroup

_COMMANDS: Final = {
    "check": "tidelog.cli.cluster_check:command",
    "describe": "tidelog.cli.cluster_describe:command",
    "down": "tidelog.cli.cluster_tend:down",
    "kill": "tidelog.cli.cluster_tend:kill",
    "renew-certificates": "tidelog.cli.cluster_tend:renew_certificates",
    "recover": "tidelog.cli.cluster_recover:command",
    "start": "tidelog.cli.cluster_tend:start",
    "status": "tidelog.cli.cluster_status:command",
    "up": "tidelog.cli.cluster_up:command",
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def command() -> None:
    """Manage clusters on this machine, and describe any cluster."""
