"""`tidelog etcd`: what those who run an etcd need, and a small image has no tools for."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import click
from tidelog.cli.service_options import fail, service_options, settings_from
from tidelog.cli.service_process import etcd_options
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.etcd.snapshots import BrokenSnapshotError, expired_names, save_snapshot
from tidelog.metadata.store import StoreError

DEFAULT_TIMEOUT_S = 120


@click.group()
def command() -> None:
    """etcd itself: snapshot."""


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
