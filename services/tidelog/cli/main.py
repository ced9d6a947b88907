"""The `tidelog` command. It imports a subcommand only when it is used, so that every command starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final, NoReturn

import click

from tidelog.cli.command_line import LazyGroup, ending_of, raised_terminations, reported_output_errors
from tidelog.process.build import commit, is_compiled, tidelog_version

_COMMANDS: Final = {
    "acl": "tidelog.cli.admin.acl:command",
    "adopt": "tidelog.cli.services.adopt:command",
    "broker": "tidelog.cli.services.broker:command",
    "cluster": "tidelog.cli.cluster.command:command",
    "completion": "tidelog.cli.completion:command",
    "config": "tidelog.cli.admin.config:command",
    "console": "tidelog.cli.services.console:command",
    "consume": "tidelog.cli.data.consume:command",
    "controller": "tidelog.cli.services.controller:command",
    "delete-records": "tidelog.cli.admin.offsets:delete_records_command",
    "dev": "tidelog.cli.services.dev:command",
    "dlq": "tidelog.cli.admin.dlq:command",
    "doctor": "tidelog.cli.doctor.command:command",
    "dump-log": "tidelog.cli.data.dump_log:command",
    "elect-leaders": "tidelog.cli.cluster.replicas:elect_leaders_command",
    "etcd": "tidelog.cli.services.etcd:command",
    "group": "tidelog.cli.admin.group:command",
    "group-coordinator": "tidelog.cli.services.group_coordinator:command",
    "kubernetes": "tidelog.cli.kubernetes:command",
    "log-dirs": "tidelog.cli.cluster.replicas:log_dirs_command",
    "offsets": "tidelog.cli.admin.offsets:offsets_command",
    "perf": "tidelog.cli.data.perf:command",
    "pipeline": "tidelog.cli.data.pipeline:command",
    "plan": "tidelog.cli.cluster.plan:command",
    "produce": "tidelog.cli.data.produce:command",
    "reassign": "tidelog.cli.cluster.replicas:reassign_command",
    "rebalance": "tidelog.cli.cluster.rebalance:command",
    "top": "tidelog.cli.cluster.command:top",
    "topic": "tidelog.cli.admin.topic:command",
    "transactions": "tidelog.cli.admin.transactions:command",
    "user": "tidelog.cli.admin.user:command",
}

# The help of `tidelog`: these lines spare it the imports of all commands.
_SECTIONS: Final = {
    "Run": {
        "dev": "Run a complete cluster in one process, for development and tests.",
        "adopt": "Take over a data directory that Apache Kafka wrote.",
        "broker": "Run one broker.",
        "controller": "Run one controller.",
        "group-coordinator": "Run one group coordinator.",
        "console": "Serve a web console with the cluster's brokers, topics, records, groups and "
        "transactions.",
        "etcd": "Back up etcd, and prepare its members.",
        "kubernetes": "Manage a release on Kubernetes.",
    },
    "Topics": {
        "topic": "List, create, describe, alter and delete topics.",
        "delete-records": "Delete all records before an offset or a time. They can't be restored.",
        "config": "Show and change the settings of topics, brokers and groups.",
        "offsets": "Show the first and next offset of each partition, or the offset of a time.",
    },
    "Groups": {
        "group": "List, describe and delete groups of all types, and set their offsets.",
        "dlq": "Show the dead letters of share groups, and send them back.",
        "transactions": "List, describe and end transactions, and find and abort hanging ones.",
    },
    "Cluster": {
        "cluster": "Manage clusters on this machine, and describe any cluster.",
        "top": "Show brokers, topics and groups with their rates, missing replicas and lag, live.",
        "doctor": "Examine a cluster, or a broker's data directory.",
        "plan": "Show what a change of the brokers would do, without changing anything.",
        "log-dirs": "Show the size, replicas and lag of each broker's log directories, or of each replica.",
        "rebalance": "Distribute replicas over the brokers.",
        "reassign": "Move replicas to the brokers that a file names.",
        "elect-leaders": "Elect the leaders of partitions.",
    },
    "Data": {
        "produce": "Send each line of standard input as a record.",
        "consume": "Print a topic's records as they arrive.",
        "perf": "Measure the throughput of producing and consuming.",
        "dump-log": "Print segments, indexes, producer snapshots and checkpoints as text.",
        "pipeline": "Copy topics into tables with Spark, and prove that the tables are complete.",
    },
    "Users": {
        "user": "List, add and delete the users of SCRAM.",
        "acl": "List, add and delete access control lists.",
    },
    "The command line": {"completion": "Print a script that completes commands and names in a shell."},
}

# gRPC's C core writes lines to stderr, such as one for each peer that stops. It reads this variable when it
# is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _print_version(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        kind = "compiled" if is_compiled() else "pure Python"
        click.echo(f"tidelog {tidelog_version()}, commit {commit()}, {kind}")
        context.exit()


class CommandLine(LazyGroup):
    """All commands. Ctrl-C or SIGTERM ends any of them with one line and the exit code of a shell."""

    def main(self, *args: Any, **options: Any) -> Any:  # of click.Group
        try:
            with raised_terminations(), reported_output_errors():
                _import_structlog()
                return super().main(*args, **options)
        except KeyboardInterrupt as error:  # while a shell asks for completions, which has no command to end
            sys.exit(ending_of(error)[1])

    def invoke(self, ctx: click.Context) -> Any:  # of the command
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:
            _end(error)


def _import_structlog() -> None:
    """Imports structlog without rich, which it would import, if installed, for tracebacks that tidelog does
    not print. This saves a tenth of a service's start time.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        importlib.import_module("structlog")
        del sys.modules["rich"]


def _end(error: BaseException) -> NoReturn:
    word, exit_code = ending_of(error)
    if sys.stderr.isatty():
        click.echo(err=True)  # the terminal has printed ^C
    click.echo(f"tidelog: {word}", err=True)
    raise click.exceptions.Exit(exit_code)


@click.group(
    cls=CommandLine,
    places=_COMMANDS,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
