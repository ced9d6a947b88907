"""`tidelog doctor`: one line for each thing that can be wrong in a cluster, with the next step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tidelog.broker.log.previous_life import DirectoryLock, LogDirectoryInUseError
from tidelog.cli.doctor.checks import findings_of
from tidelog.cli.doctor.directory_check import DirectoryReport, check_directory, partition_paths, sizes_of
from tidelog.cli.doctor.directory_repair import Copies, RepairError, repair_directory
from tidelog.cli.doctor.fact_reader import FactReader
from tidelog.cli.doctor.facts import (
    COULD_NOT_LOOK,
    Finding,
    State,
    Unseen,
    exit_code,
    not_checked,
    shortened,
    worst_first,
)
from tidelog.cli.doctor.partition_check import STRANDED, stranded_findings
from tidelog.cli.local_cluster.cluster import LocalCluster
from tidelog.cli.local_cluster.plan import CLIENT_PROPERTIES
from tidelog.cli.output import OutputFormat, add_facts, finish, note, output_format, print_table
from tidelog.cli.tool_command import (
    DEFAULT_BOOTSTRAP,
    ToolCommand,
    ToolError,
    cluster_options,
    command_bootstrap,
    command_security,
    command_timeout_ms,
    sentence_of,
)
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import NO_SECURITY, ClientSecurity, read_security
from tidelog.kernel.instants import WallMs
from tidelog.log_format.directory import META_PROPERTIES_FILE
from tidelog.model.errors import KafkaError
from tidelog.model.text import counted
from tidelog.observe.number_texts import size_text

SERVICE_TIMEOUT_S: Final = 5.0
"""The time to wait for an answer of a metrics endpoint or of etcd."""


class DoctorCommand(ToolCommand):
    """A command with the exit codes of `findings`: what prevents a look has a code of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            raise click.exceptions.Exit(COULD_NOT_LOOK) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return click.Command.invoke(self, ctx)
        except (ToolError, ClientError, KafkaError) as error:
            click.echo(f"tidelog: {sentence_of(error)}", err=True)
            raise click.exceptions.Exit(COULD_NOT_LOOK) from None


@click.command(
    cls=DoctorCommand,
    short_help="Examine a cluster, or a broker's data directory.",
    examples=(
        "tidelog doctor",
        "tidelog doctor --data-dir cluster --format json",
        "tidelog doctor data --repair",
    ),
)
@click.argument(
    "directory",
    metavar="[DIR]",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--repair", is_flag=True, help="With DIR: repair it, and first copy every file that changes.")
@click.option(
    "--copies",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --repair: the new directory for the copies.  [default: DIR.before-repair-TIME]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The --data-dir of 'tidelog cluster up', whose etcd, registrations and files are examined, too.",
)
@click.option(
    "--etcd",
    "etcd_addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="The metrics address of an etcd server (--listen-metrics-urls). Repeatable.",
)
@cluster_options
def command(
    directory: Path | None,
    repair: bool,
    copies: Path | None,
    data_dir: Path | None,
    etcd_addresses: tuple[str, ...],
) -> None:
    """Examine a running cluster, and print one line for each check with the next step.

    With DIR, examine the data directory of a stopped broker, or one partition in it: every batch, index and
    checkpoint. Without --repair, the command changes nothing. Its exit code is 0 if all is well, 1 for
    warnings, 2 for failures, and 3 if it could not look.
    """
    if directory is not None:
        if data_dir is not None or etcd_addresses:
            raise ToolError(f"{directory} is examined without a cluster: leave out --data-dir and --etcd")
        findings = examine_directory(directory.absolute(), repairs=repair, copies=copies)
        report(findings)
    if repair or copies is not None:
        raise ToolError(
            "--repair and --copies need the data directory of a stopped broker: tidelog doctor DIR"
        )
    for address in etcd_addresses:
        if not address.rpartition(":")[2].isdecimal():
            raise ToolError(f"--etcd {address}: expected HOST:PORT")
    local = None if data_dir is None else LocalCluster.open(data_dir)
    bootstrap, security = command_bootstrap(), command_security()
    if local is not None:
        bootstrap, security = _local_access(local, bootstrap, security)
    timeout_s = command_timeout_ms() / 1000
    with Cluster(bootstrap, client_id="tidelog-doctor", timeout_s=timeout_s, security=security) as cluster:
        console = Console(stderr=True)
        with console.status("connecting") as status:
            reader = FactReader(
                cluster,
                SERVICE_TIMEOUT_S,
                local,
                etcd_addresses,
                lambda part: status.update(f"reading {part}"),
            )
            now_s = time.time()
            findings = findings_of(reader.read(WallMs(int(now_s * 1000))), now_s)
    if local is not None:
        findings += shortened(_stranded(local))
    report(findings)


def examine_directory(directory: Path, *, repairs: bool, copies: Path | None) -> list[Finding]:
    """Checks the data directory of a stopped broker, repairs it if asked to, and returns what was found.

    After a repair, the findings are those of a second check. Raises ToolError.
    """
    paths = partition_paths(directory)
    is_partition = paths == [directory]
    if not paths and not (directory / META_PROPERTIES_FILE).exists():
        raise ToolError(f"{directory} is not a broker's data directory: it has no partitions")
    if repairs and is_partition:
        raise ToolError(
            f"a repair changes checkpoints that are beside {directory.name}: "
            f"use 'tidelog doctor {directory.parent} --repair'"
        )
    owner = directory.stat().st_uid
    if repairs and os.geteuid() != owner:
        raise ToolError(
            f"{directory} belongs to user {owner}, who could not open files that another user creates: "
            f"repair it as that user (sudo -u '#{owner}')"
        )
    try:
        lock = DirectoryLock(directory.parent if is_partition else directory)
    except LogDirectoryInUseError as error:
        raise ToolError(f"{error}: stop the broker first") from error
    except OSError as error:
        raise ToolError(f"{directory} cannot be locked: {error.strerror}") from error
    try:
        found = _checked(directory, paths)
        if repairs and (found.bad_checkpoints or any(p.needs_repair for p in found.partitions)):
            stamp = time.strftime("%Y%m%d-%H%M%S")
            target = copies or directory.with_name(f"{directory.name}.before-repair-{stamp}")
            kept = Copies(directory, target)
            for finding in worst_first(found.all_findings):
                note(f"{finding.state}: {finding.text}")
            repair_directory(found, kept, WallMs(time.time_ns() // 1_000_000), note)
            note(f"Copies of what was changed or removed: {counted(len(kept), 'file')} in {kept.path}")
            found = _checked(directory, partition_paths(directory))
    except RepairError as error:
        raise ToolError(str(error)) from error
    except OSError as error:
        raise ToolError(f"{error.filename or directory}: {error.strerror or error}") from error
    finally:
        lock.release()
    return _with_summary(found)


def _checked(directory: Path, paths: Sequence[Path]) -> DirectoryReport:
    """Checks a directory with a progress bar on a terminal."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task("reading", total=sizes_of(paths))
        return check_directory(directory, lambda size: progress.advance(task, size))


def _with_summary(found: DirectoryReport) -> list[Finding]:
    partitions = counted(len(found.partitions), "partition")
    segments = counted(sum(partition.segment_count for partition in found.partitions), "segment")
    size = size_text(sizes_of([partition.path for partition in found.partitions]))
    read = f"read completely: {partitions}, {segments}, {size}"
    is_sound = not any(finding.state is not State.OK for finding in found.all_findings)
    text = f"{read}; all batches, indexes, epochs, snapshots and checkpoints are sound" if is_sound else read
    return [*shortened(found.all_findings), Finding("summary", State.OK, text)]


def _stranded(local: LocalCluster) -> list[Finding]:
    """Returns the files with what recovery took out of the logs of a local cluster."""
    found = []
    try:
        for number in local.plan.broker_ids:
            directory = local.log_dir(number)
            for path in partition_paths(directory) if directory.is_dir() else ():
                found += stranded_findings(path, f"broker {number}, {path.name}")
    except OSError as error:
        found.append(not_checked(STRANDED, Unseen(f"{error.filename}: {error.strerror}")))
    return found


def _local_access(
    local: LocalCluster, bootstrap_server: str, security: ClientSecurity
) -> tuple[str, ClientSecurity]:
    """Returns the address and the login of a local cluster, unless others are given."""
    if bootstrap_server == DEFAULT_BOOTSTRAP:
        bootstrap_server = ",".join(local.plan.broker_address(number) for number in local.plan.broker_ids)
    if security is NO_SECURITY and local.plan.is_secure:
        security = read_security(local.directory / CLIENT_PROPERTIES)
    return bootstrap_server, security


def report(findings: Sequence[Finding]) -> None:
    """Prints the findings, the worst first, and ends the process with their exit code."""
    code = exit_code(findings)
    ordered = worst_first(findings)
    add_facts(exit_code=code)
    print_table(
        ("state", "check", "finding", "next step"),
        [(str(f.state), f.check, f.text, f.next_step or None) for f in ordered],
        name="findings",
    )
    if output_format() is not OutputFormat.JSON:
        counts = {state: sum(f.state is state for f in ordered) for state in State}
        note(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    finish()
    raise click.exceptions.Exit(code)
