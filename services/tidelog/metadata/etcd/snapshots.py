"""Saves snapshots of etcd's whole store in files that `etcdutl snapshot restore` reads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from typing import IO, Final, NamedTuple

import grpc

from tidelog.metadata.etcd.connection import EtcdConnection, EtcdOptions, Metadata, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, failed_call
from tidelog.metadata.store import StoreUnavailableError

# etcd appends the SHA-256 of the store.
SUM_BYTES: Final = 32
# Number of attempts if a member fails during a snapshot.
MAX_ATTEMPTS: Final = 3

_NAME: Final = re.compile(r"etcd-\d{8}-\d{6}\.db")
_UNFINISHED_NAME: Final = re.compile(r"etcd-\d{8}-\d{6}\.db\.part")


class BrokenSnapshotError(Exception):
    """A member sent an incomplete or damaged snapshot."""


class SavedSnapshot(NamedTuple):
    """A snapshot in a file. It holds at least `revision`, the revision of the store when the snapshot was
    requested.
    """

    path: Path
    size_bytes: int
    revision: int
    endpoint: str


async def save_snapshot(options: EtcdOptions, path: Path, timeout_s: float) -> SavedSnapshot:
    """Saves a snapshot from the first member that answers and knows a leader.

    `path` is either complete and synced, or does not exist. Raises StoreUnavailableError,
    BrokenSnapshotError, OSError and TimeoutError.
    """
    connections = EtcdConnections(options)
    unfinished = path.with_name(path.name + ".part")
    try:
        async with asyncio.timeout(timeout_s):
            saved = await _save_from_some_member(connections, path, unfinished)
        unfinished.replace(path)
        _sync_directory(path.parent)
        return saved
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        await connections.close()


def expired_names(names: Iterable[str], keep: int) -> list[str]:
    """Returns the file names to remove: all but the newest `keep` snapshots, and unfinished snapshots.

    `names` are all names in the directory. Names of other files are never returned.
    """
    there = tuple(names)
    snapshots = sorted(name for name in there if _NAME.fullmatch(name))
    unfinished = [name for name in there if _UNFINISHED_NAME.fullmatch(name)]
    return snapshots[: max(0, len(snapshots) - keep)] + sorted(unfinished)


async def _save_from_some_member(connections: EtcdConnections, path: Path, unfinished: Path) -> SavedSnapshot:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        connection = await connections.get(None)
        token = connections.token
        try:
            revision, size_bytes = await _save_from(connection, connections.metadata, unfinished)
            return SavedSnapshot(path, size_bytes, revision, connection.endpoint.target)
        except CallFailedError as error:
            if connections.lacks_token(error, token):
                connections.forget_token(token)
            elif error.fault in (CallFault.UNKNOWN, CallFault.NOT_DONE):
                connections.retire(connection, error.details)
            else:
                raise error.for_caller() from error
            if attempt == MAX_ATTEMPTS:
                raise StoreUnavailableError(
                    f"etcd at {connection.endpoint.target}: {error.details}"
                ) from error
    raise AssertionError("unreachable")


async def _save_from(connection: EtcdConnection, metadata: Metadata, unfinished: Path) -> tuple[int, int]:
    """Returns the revision of the store before the snapshot, and the size of the file in bytes."""
    status = await answer_of(connection.maintenance.Status(pb.StatusRequest(), metadata=metadata))
    if not status.leader:
        raise CallFailedError(CallFault.NOT_DONE, "the member knows no leader, so its store may be outdated")
    with unfinished.open("wb") as file:
        try:
            pieces = connection.maintenance.Snapshot(pb.SnapshotRequest(), metadata=metadata)
            size_bytes = await write_checked(pieces, file)
        except grpc.aio.AioRpcError as error:
            raise failed_call(error) from error
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    return status.header.revision, size_bytes


async def write_checked(pieces: AsyncIterable[pb.SnapshotResponse], file: IO[bytes]) -> int:
    """Writes the blobs and returns their size in bytes. Raises BrokenSnapshotError unless the SHA-256
    matches.
    """
    sum_of_store = hashlib.sha256()
    # The last bytes so far, which may be the SHA-256.
    tail = b""
    size_bytes = remaining_bytes = 0
    async for piece in pieces:
        file.write(piece.blob)
        size_bytes += len(piece.blob)
        remaining_bytes = piece.remaining_bytes
        tail += piece.blob
        sum_of_store.update(tail[:-SUM_BYTES])
        tail = tail[-SUM_BYTES:]
    if remaining_bytes:
        raise BrokenSnapshotError(f"the snapshot ended {remaining_bytes} bytes early")
    if size_bytes <= SUM_BYTES or sum_of_store.digest() != tail:
        raise BrokenSnapshotError("the snapshot does not match the SHA-256 at its end")
    return size_bytes


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
