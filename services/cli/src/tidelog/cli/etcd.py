"""`tidelog etcd`: what those who run an etcd need, and a small image has no tools for."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from typing import Any

import click
from tidelog.cli.service_options import fail, service_options, settings_from
from tidelog.cli.service_process import etcd_options
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.etcd.rejoining import Peers, cluster_state, has_data
from tidelog.metadata.etcd.snapshots import BrokenSnapshotError, expired_names, save_snapshot
from tidelog.metadata.store import StoreError

DEFAULT_TIMEOUT_S = 120
DEFAULT_JOIN_TIMEOUT_S = 60


@click.group()
def command() -> None:
    """etcd itself: snapshot, join."""


@command.command("snapshot")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="Where snapshots are kept, as etcd-YYYYMMDD-HHMMSS.db.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Remove all but the newest N; all stay if not given.",
)
@click.option(
    "--timeout-s",
    type=click.IntRange(min=1),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    help="How long one may take.",
)
@service_options
def snapshot(
    output_dir: Path,
    keep: int | None,
    timeout_s: int,
    configs: tuple[Path, ...],
    assignments: tuple[str, ...],
) -> None:
    """Copy the whole store of one member into a file, checked by its sum.

    Where etcd is comes from tidelog.etcd.* settings, as for the services. `etcdutl snapshot restore` reads
    the file.
    """
    options = etcd_options(settings_from(configs, assignments))
    now = datetime.datetime.now(datetime.UTC)
    path = output_dir / f"etcd-{now:%Y%m%d-%H%M%S}.db"
    _save(options, path, timeout_s)
    if keep is not None:
        _remove_expired(output_dir, keep)


def _save(options: EtcdOptions, path: Path, timeout_s: int) -> None:
    try:
        saved = asyncio.run(save_snapshot(options, path, timeout_s))
    except TimeoutError:
        fail(f"no snapshot within {timeout_s} s from {','.join(options.endpoints)}; --timeout-s allows more")
    except (StoreError, BrokenSnapshotError, OSError) as error:
        fail(f"no snapshot: {error}")
    click.echo(
        f"{saved.path}: {saved.size_bytes} bytes from {saved.endpoint}, revision {saved.revision} or later"
    )


def _remove_expired(directory: Path, keep: int) -> None:
    try:
        for name in expired_names((entry.name for entry in directory.iterdir()), keep):
            (directory / name).unlink(missing_ok=True)
            click.echo(f"{directory / name}: removed")
    except OSError as error:
        fail(f"older snapshots could not be removed: {error}")


@command.command("join")
@click.option(
    "--member-config",
    "source",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    required=True,
    help="The member's configuration for etcd's --config-file, in JSON.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where it is written with the right initial-cluster-state.",
)
@click.option(
    "--timeout-s",
    type=click.IntRange(min=1),
    default=DEFAULT_JOIN_TIMEOUT_S,
    show_default=True,
    help="How long the others may take to agree.",
)
@service_options
def join(
    source: Path, output: Path, timeout_s: int, configs: tuple[Path, ...], assignments: tuple[str, ...]
) -> None:
    """Prepare a member's start: one that has lost its data is removed and added first.

    For a cluster of members with fixed names. The others, tidelog.etcd.endpoints, must have a majority
    for that; when none of them answers, this is taken for the cluster's first start.
    """
    options = etcd_options(settings_from(configs, assignments))
    config = _member_config(source)
    if not has_data(Path(config["data-dir"])):
        try:
            state = asyncio.run(cluster_state(options, _peers_of(config), timeout_s))
        except StoreError as error:
            fail(f"the cluster did not take this member in again within {timeout_s} s: {error}")
        config["initial-cluster-state"] = state
        click.echo(f"{config['name']}: no data yet, starts as a member of a cluster that is {state}")
    try:
        output.write_text(json.dumps(config), "utf-8")
    except OSError as error:
        fail(f"--output {output}: {error.strerror}")


def _member_config(source: Path) -> dict[str, Any]:
    wanted = ("name", "data-dir", "initial-advertise-peer-urls", "initial-cluster")
    try:
        config = json.loads(source.read_text("utf-8"))
    except (OSError, ValueError) as error:
        fail(f"--member-config {source}: {error}")
    if not isinstance(config, dict) or not all(isinstance(config.get(name), str) for name in wanted):
        fail(f"--member-config {source}: an object with {', '.join(wanted)} expected")
    return config


def _peers_of(config: dict[str, Any]) -> Peers:
    files = config.get("peer-transport-security", {})
    return Peers(
        config["initial-advertise-peer-urls"],
        tuple(member.partition("=")[2] for member in config["initial-cluster"].split(",")),
        ca_file=files.get("trusted-ca-file", ""),
        cert_file=files.get("cert-file", ""),
        key_file=files.get("key-file", ""),
    )
