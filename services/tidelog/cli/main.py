"""The `tidelog` command. It imports a subcommand only when it is used, so that every command starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

from tidelog.cli.lazy_group import LazyGroup
from tidelog.process.build import commit, is_compiled, tidelog_version

_COMMANDS: Final = {
    "acl": "tidelog.cli.acl:command",
    "broker": "tidelog.cli.broker:command",
    "cluster": "tidelog.cli.cluster:command",
    "config": "tidelog.cli.config:command",
    "consume": "tidelog.cli.consume:command",
    "controller": "tidelog.cli.controller:command",
    "dev": "tidelog.cli.dev:command",
    "dlq": "tidelog.cli.dlq:command",
    "dump-log": "tidelog.cli.dump_log:command",
    "etcd": "tidelog.cli.etcd:command",
    "group": "tidelog.cli.group:command",
    "group-coordinator": "tidelog.cli.group_coordinator:command",
    "kubernetes": "tidelog.cli.kubernetes:command",
    "offsets": "tidelog.cli.offsets:command",
    "perf": "tidelog.cli.perf:command",
    "pipeline": "tidelog.cli.pipeline:command",
    "produce": "tidelog.cli.produce:command",
    "rebalance": "tidelog.cli.rebalance:command",
    "topic": "tidelog.cli.topic:command",
    "transactions": "tidelog.cli.transactions:command",
    "user": "tidelog.cli.user:command",
}

# structlog imports rich, if it is installed, for tracebacks that tidelog does not print. Preventing the
# import saves a tenth of a service's start time.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    importlib.import_module("structlog")
    del sys.modules["rich"]

# gRPC's C core writes lines to stderr, such as one for each peer that stops. It reads this variable when it
# is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _print_version(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        kind = "compiled" if is_compiled() else "pure Python"
        click.echo(f"tidelog {tidelog_version()}, commit {commit()}, {kind}")
        context.exit()


@click.group(cls=LazyGroup, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version, the commit, and whether the request path is compiled.",
)
def main() -> None:
    """Kafka's log on Kubernetes, in Python. Any Kafka client connects."""


if __name__ == "__main__":
    sys.exit(main())
