"""`tidelog etcd`: commands for operators of etcd, for images without etcd's own tools.

Each kind of service has a role in etcd (ADR 0065) and reaches only the keys that it needs. The controller
reads and writes all keys. Brokers and group coordinators cannot read credentials, delegation tokens, ACLs or
quotas there: brokers receive them from the controller. etcd grants ranges of keys and no patterns, so a
broker may write all keys below /brokers/topics, although it only changes partition states.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli.output import add_facts, progress, say
from tidelog.cli.services.service_options import command_settings, etcd_options, fail, service_options
from tidelog.cli.tool_command import ToolCommand, ToolError
from tidelog.metadata.coordinators import COORDINATORS
from tidelog.metadata.entries import (
    ALL_KEYS_PREFIX,
    BROKER_CONFIG_PREFIX,
    BROKER_PREFIX,
    BROKERS_AND_TOPICS_PREFIX,
    CLUSTER_ID_KEY,
    CONTROLLER_KEY,
    GROUP_CONFIG_PREFIX,
    SCHEMA_VERSION_KEY,
    TOPIC_PREFIX,
)
from tidelog.metadata.etcd.connection import EtcdOptions
from tidelog.metadata.etcd.rejoining import Peers, cluster_state, has_data
from tidelog.metadata.etcd.snapshots import BrokenSnapshotError, expired_names, save_snapshot
from tidelog.metadata.etcd.users import (
    ROOT,
    ROOT_ROLE,
    EtcdUser,
    KeyRange,
    Role,
    create_users,
    require_no_users,
    require_users,
)
from tidelog.metadata.store import StoreError
from tidelog.model.text import JsonObject
from tidelog.process.command_help import SuggestingGroup
from tidelog.rpc.peer_tls import DEFAULT_SERVER_NAME, ServiceRole, role_name

DEFAULT_TIMEOUT_S = 120
DEFAULT_JOIN_TIMEOUT_S = 60
_PEER_SECTION: Final = "peer-transport-security"
_PEER_FILES: Final = ("trusted-ca-file", "cert-file", "key-file")
"""The keys of the authority, the certificate and its key, in the order of Peers."""
ISR_CHANGES: Final = "/isr_change_notification/"
_READ: Final[Mapping[ServiceRole, tuple[str, ...]]] = {
    ServiceRole.BROKER: (CONTROLLER_KEY,),
    ServiceRole.CONTROLLER: (),
    ServiceRole.GROUP_COORDINATOR: (BROKERS_AND_TOPICS_PREFIX, BROKER_CONFIG_PREFIX, GROUP_CONFIG_PREFIX),
}
"""The prefixes of the keys that each kind of service reads, without those that it also writes."""
_WRITTEN: Final[Mapping[ServiceRole, tuple[str, ...]]] = {
    ServiceRole.BROKER: (BROKER_PREFIX, TOPIC_PREFIX, ISR_CHANGES),
    ServiceRole.CONTROLLER: (ALL_KEYS_PREFIX,),
    ServiceRole.GROUP_COORDINATOR: (COORDINATORS,),
}
"""The prefixes of the keys that each kind of service reads and writes."""
_FIRST_KEYS: Final = (CLUSTER_ID_KEY, SCHEMA_VERSION_KEY)
"""The keys that the first controller of a cluster writes, and that all services read."""

F = TypeVar("F", bound=Callable[..., object])


def _gives_up_after(default_s: int) -> Callable[[F], F]:
    return click.option(
        "--timeout-s",
        type=click.IntRange(min=1),
        default=default_s,
        show_default=True,
        help="Seconds until the command gives up.",
    )


@click.group(cls=SuggestingGroup)
def command() -> None:
    """Back up etcd, and prepare its members."""


@command.command(
    "snapshot",
    cls=ToolCommand,
    examples=("tidelog etcd snapshot --output-dir . --keep 7 --set tidelog.etcd.endpoints=etcd:2379",),
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="Directory for snapshots, which are named etcd-YYYYMMDD-HHMMSS.db.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Remove all but the newest N snapshots. By default all snapshots are kept.",
)
@_gives_up_after(DEFAULT_TIMEOUT_S)
@service_options
def snapshot(output_dir: Path, keep: int | None, timeout_s: int) -> None:
    """Copy the store of one member into a file, and verify the file's checksum.

    The tidelog.etcd.* settings name the etcd cluster. `etcdutl snapshot restore` reads the file.
    """
    options = etcd_options(command_settings())
    now = datetime.datetime.now(datetime.UTC)
    path = output_dir / f"etcd-{now:%Y%m%d-%H%M%S}.db"
    _save(options, path, timeout_s)
    if keep is not None:
        _remove_expired(output_dir, keep)


def _save(options: EtcdOptions, path: Path, timeout_s: int) -> None:
    try:
        saved = asyncio.run(save_snapshot(options, path, timeout_s))
    except TimeoutError:
        fail(
            f"no snapshot from {','.join(options.endpoints)} within {timeout_s} s; "
            "check tidelog.etcd.endpoints, or increase --timeout-s"
        )
    except (StoreError, BrokenSnapshotError, OSError) as error:
        fail(f"the snapshot failed: {error}")
    say(
        f"{saved.path}: {saved.size_bytes} bytes from {saved.endpoint}, revision {saved.revision} or later",
        path=str(saved.path),
        size_bytes=saved.size_bytes,
        endpoint=str(saved.endpoint),
        revision=saved.revision,
    )


def _remove_expired(directory: Path, keep: int) -> None:
    removed: list[str] = []
    path = directory
    try:
        for name in expired_names((entry.name for entry in directory.iterdir()), keep):
            path = directory / name
            path.unlink(missing_ok=True)
            progress(f"{path}: removed")
            removed.append(str(path))
    except OSError as error:
        raise ToolError(f"{path} could not be removed: {error.strerror}") from error
    finally:
        add_facts(removed=removed)


@command.command(
    "require-password",
    cls=ToolCommand,
    examples=(
        "tidelog etcd require-password --config server.properties",
        "tidelog etcd require-password --service-passwords passwords --config server.properties",
    ),
)
@_gives_up_after(DEFAULT_JOIN_TIMEOUT_S)
@click.option(
    "--service-passwords",
    "directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Directory with the files broker, controller and group-coordinator, which contain their passwords.",
)
@click.option("--only-create", is_flag=True, help="Create the users, but do not require them yet.")
@click.option("--off", "is_off", is_flag=True, help="Let etcd require no password any more.")
@service_options
def require_password_command(timeout_s: int, directory: Path | None, only_create: bool, is_off: bool) -> None:
    """Let etcd require the password of tidelog.etcd.username, which is root.

    With --service-passwords, each kind of service has a user of its own, such as broker.tidelog, which
    reaches only the keys that it needs. Clients that already have their password continue without a pause.
    The command can run again, for example to set changed passwords of services.
    """
    options = etcd_options(command_settings())
    if options.username != ROOT:
        fail(f"tidelog.etcd.username: {options.username or 'is not set'}; it must be {ROOT}")
    users = [EtcdUser(ROOT, ROOT_ROLE, options.password), *_service_users(directory)]
    try:
        asyncio.run(_within(timeout_s, _change(options, users, only_create=only_create, is_off=is_off)))
    except (StoreError, TimeoutError) as error:
        fail(str(error) or f"etcd did not answer within {timeout_s} s")
    if is_off:
        text = "etcd requires no password"
    else:
        text = "etcd has the users" if only_create else "etcd requires the password"
    say(text, requires_password=not is_off and not only_create)


def _service_users(directory: Path | None) -> list[EtcdUser]:
    if directory is None:
        return []
    passwords = {}
    for kind in ServiceRole:
        path = directory / kind.value
        try:
            passwords[kind] = path.read_text("utf-8").rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--service-passwords {path}: {error}")
        if not passwords[kind]:
            fail(f"--service-passwords {path}: is empty")
    return service_users(passwords.__getitem__)


async def _change(options: EtcdOptions, users: list[EtcdUser], *, only_create: bool, is_off: bool) -> None:
    if is_off:
        await require_no_users(options)
    elif only_create:
        await create_users(options, users)
    else:
        await require_users(options, users)


async def _within(timeout_s: float, change: Coroutine[None, None, None]) -> None:
    async with asyncio.timeout(timeout_s):
        await change


@command.command(
    "join", cls=ToolCommand, examples=("tidelog etcd join --member-config member.json --output etcd.json",)
)
@click.option(
    "--member-config",
    "source",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    required=True,
    help="The member's configuration file for etcd, in JSON.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Output file: the configuration with the correct initial-cluster-state.",
)
@_gives_up_after(DEFAULT_JOIN_TIMEOUT_S)
@service_options
def join(source: Path, output: Path, timeout_s: int) -> None:
    """Prepare the start of a member.

    If the member has lost its data, the command removes the member from the cluster and adds it again. The
    other members, tidelog.etcd.endpoints, must then have a majority. If none of them answers, the command
    assumes that the cluster starts for the first time. Members must have fixed names.
    """
    options = etcd_options(command_settings())
    config = _member_config(source)
    if not has_data(Path(config["data-dir"])):
        try:
            state = asyncio.run(cluster_state(options, _peers_of(config), timeout_s))
        except StoreError as error:
            fail(f"the cluster did not add this member again within {timeout_s} s: {error}")
        config["initial-cluster-state"] = state
        progress(f"{config['name']}: has no data; starts as a member of a cluster whose state is {state}")
    else:
        progress(f"{config['name']}: has data; starts as the member that it was")
    try:
        output.write_text(json.dumps(config), "utf-8")
    except OSError as error:
        fail(f"--output {output}: {error.strerror}")
    add_facts(
        member=config["name"], output=str(output), initial_cluster_state=config.get("initial-cluster-state")
    )


def _member_config(source: Path) -> JsonObject:
    wanted = ("name", "data-dir", "initial-advertise-peer-urls", "initial-cluster")
    try:
        config = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        fail(f"--member-config {source}: {error}")
    if not isinstance(config, dict) or not all(isinstance(config.get(name), str) for name in wanted):
        fail(f"--member-config {source}: expected an object with {', '.join(wanted)}")
    files = _peer_files(config)
    if not isinstance(files, dict) or not all(isinstance(files.get(name, ""), str) for name in _PEER_FILES):
        fail(f"--member-config {source}: {_PEER_SECTION}: expected an object of file names")
    return config


def _peer_files(config: JsonObject) -> Any:  # of a file that is not checked yet
    return config.get(_PEER_SECTION) or {}


def _peers_of(config: JsonObject) -> Peers:
    files = _peer_files(config)
    return Peers(
        config["initial-advertise-peer-urls"],
        tuple(member.partition("=")[2] for member in config["initial-cluster"].split(",")),
        *(files.get(name, "") for name in _PEER_FILES),
    )


def etcd_role(kind: ServiceRole) -> Role:
    """Returns the role of a kind of service. Its user has the same name, such as `broker.tidelog`."""
    read = (
        *(KeyRange(prefix) for prefix in _READ[kind]),
        *(KeyRange(key, is_prefix=False) for key in _FIRST_KEYS),
    )
    written = tuple(KeyRange(prefix) for prefix in _WRITTEN[kind])
    return Role(role_name(kind, DEFAULT_SERVER_NAME), read, written)


def service_users(password_of: Callable[[ServiceRole], str]) -> list[EtcdUser]:
    """Returns the users of all kinds of services. An empty password stands for a certificate's name."""
    roles = ((kind, etcd_role(kind)) for kind in ServiceRole)
    return [EtcdUser(role.name, role, password_of(kind)) for kind, role in roles]
