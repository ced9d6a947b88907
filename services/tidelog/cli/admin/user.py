"""`tidelog user`: lists, adds and deletes the users of SCRAM (kafka-configs --entity-type users)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click

from tidelog.cli.local_cluster.secure_dev import new_entries, write_first_user
from tidelog.cli.output import print_table, say
from tidelog.cli.services.service_options import command_settings, etcd_options, service_options
from tidelog.cli.tool_command import ToolCommand, ToolError, asks_first, cluster_options, confirm, connect
from tidelog.client.admin.access import delete_credentials, describe_users, set_password
from tidelog.kernel.clock import SystemClock
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.metadata.store import MetadataStore, StoreError
from tidelog.process.command_help import SuggestingGroup
from tidelog.sasl import SCRAM_SHA_512
from tidelog.sasl.scram import MAX_ITERATIONS, MECHANISM_BY_NAME, MIN_ITERATIONS, saslprep

_password_option = click.option(
    "--password-file",
    type=click.File("r"),
    metavar="FILE",
    help="File with the password in its first line; - is standard input. Without it, the tool asks.",
)
_mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(MECHANISM_BY_NAME)),
    default=[SCRAM_SHA_512],
    show_default=True,
    help="A mechanism of the user. Repeatable.",
)
_iterations_option = click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="Number of hash iterations, which make guessing passwords slower.",
)


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, add and delete the users of SCRAM."""


@command.command("list", cls=ToolCommand, examples=("tidelog user list",))
@click.argument("names", nargs=-1, metavar="[USER]...")
@cluster_options
def list_users(names: tuple[str, ...]) -> None:
    """List the users and their mechanisms."""
    with connect() as cluster:
        found = describe_users(cluster, names)
    print_table(("user", "mechanism", "#iterations"), found, title="Users")


@command.command(
    "add",
    cls=ToolCommand,
    examples=("tidelog user add alice", "tidelog user add alice --password-file password.txt"),
)
@click.argument("name", metavar="USER")
@_password_option
@_mechanism_option
@_iterations_option
@cluster_options
def add(name: str, password_file: TextIO | None, mechanisms: tuple[str, ...], iterations: int) -> None:
    """Add a user, or change its password."""
    check_unchanged_by_saslprep("the user name", name)
    password = _password(password_file)
    with connect() as cluster:
        set_password(cluster, name, password, [MECHANISM_BY_NAME[m] for m in mechanisms], iterations)
    say(f"User {name} can log in with {', '.join(mechanisms)}.", user=name, mechanisms=mechanisms)


@command.command("delete", cls=ToolCommand, examples=("tidelog user delete alice",))
@click.argument("name", metavar="USER")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(MECHANISM_BY_NAME)),
    help="Delete only this mechanism's credential. Repeatable.",
)
@asks_first
@cluster_options
def delete(name: str, mechanisms: tuple[str, ...]) -> None:
    """Delete a user. Its connections stay until they end or must authenticate again.

    On a terminal, it asks first.
    """
    with connect() as cluster:
        chosen = mechanisms or tuple(found.mechanism for found in describe_users(cluster, [name]))
        confirm(f"Delete the login of user {name} with {', '.join(chosen)}?")
        delete_credentials(cluster, name, [MECHANISM_BY_NAME[mechanism] for mechanism in chosen])
    say(f"User {name} can no longer log in with {', '.join(chosen)}.", user=name, mechanisms=chosen)


@command.command(
    "bootstrap",
    cls=ToolCommand,
    examples=(
        "tidelog user bootstrap admin --password-file password.txt --set tidelog.etcd.endpoints=etcd:2379",
    ),
)
@click.argument("name", metavar="USER")
@_password_option
@_mechanism_option
@_iterations_option
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of `tidelog dev`, which must not run. Without it, the user is written to etcd.",
)
@service_options
def bootstrap(
    name: str,
    password_file: TextIO | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    data_dir: Path | None,
) -> None:
    """Add the first user before the first start of a cluster (kafka-storage format --add-scram).

    The user is written to the metadata store, because no broker serves clients without a user yet. --config
    and --set name etcd as for the services. A user that exists is not changed.
    """
    check_unchanged_by_saslprep("the user name", name)
    entries = new_entries(name, _password(password_file), mechanisms, iterations)
    try:
        written = asyncio.run(_write(entries, data_dir))
    except (StoreError, OSError) as error:
        raise ToolError(str(error)) from error
    if not written:
        raise ToolError(f"user {name} exists already; 'tidelog user add' changes its password")
    say(f"User {name} can log in with {', '.join(mechanisms)}.", user=name, mechanisms=mechanisms)


async def _write(entries: Sequence[ScramCredentialEntry], data_dir: Path | None) -> bool:
    # These modules load gRPC, which the other subcommands do not need.

    from tidelog.embedded.adopt import metadata_directory
    from tidelog.metadata.etcd.etcd_store import EtcdMetadataStore
    from tidelog.metadata.file_store import FileMetadataStore

    clock = SystemClock()
    store: MetadataStore
    if data_dir is not None:
        store = FileMetadataStore.open(metadata_directory(data_dir), monotonic_ms=clock.monotonic_ms)
    else:
        store = EtcdMetadataStore(etcd_options(command_settings()))
    try:
        return await write_first_user(store, entries)
    finally:
        await store.close()


def _password(file: TextIO | None) -> str:
    if file is None:
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = file.readline().rstrip("\r\n")
    if not password:
        raise ToolError("the password is empty")
    check_unchanged_by_saslprep("the password", password)
    return password


def check_unchanged_by_saslprep(what: str, text: str) -> None:
    """Raises ToolError for a text that clients may send in different forms (RFC 4013)."""
    try:
        prepared = saslprep(text)
    except ValueError as error:
        raise ToolError(f"{what} is not allowed: {error}") from None
    if prepared != text:
        raise ToolError(
            f"{what} contains characters that some clients replace before they send it (SASLprep); "
            "choose other ones"
        )
