"""The `tidelog` command: subcommands are imported when they are used, so that each starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

_COMMANDS: Final = {
    "broker": "tidelog.cli.broker",
    "cluster": "tidelog.cli.cluster",
    "config": "tidelog.cli.config",
    "consume": "tidelog.cli.consume",
    "controller": "tidelog.cli.controller",
    "dev": "tidelog.cli.dev",
    "dump-log": "tidelog.cli.dump_log",
    "etcd": "tidelog.cli.etcd",
    "group": "tidelog.cli.group",
    "group-coordinator": "tidelog.cli.group_coordinator",
    "kubernetes": "tidelog.cli.kubernetes",
    "offsets": "tidelog.cli.offsets",
    "perf": "tidelog.cli.perf",
    "produce": "tidelog.cli.produce",
    "rebalance": "tidelog.cli.rebalance",
    "topic": "tidelog.cli.topic",
    "transactions": "tidelog.cli.transactions",
}
"""Subcommand -> module; the module's `command` is the click command."""


# structlog imports rich where it is there, for tracebacks that we don't print: a tenth of the time a service
# takes to start.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    importlib.import_module("structlog")
    del sys.modules["rich"]

# gRPC's C core writes lines of its own to stderr, such as one for each peer that stops. It reads this when it
# is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelog")
def main() -> None:
    """Kafka's log on Kubernetes, in Python. Any Kafka client connects."""


if __name__ == "__main__":
    sys.exit(main())
