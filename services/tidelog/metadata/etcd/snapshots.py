"""Copies of etcd's whole store in files, as `etcdutl snapshot restore` takes them."""

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

from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.faults import CallFailedError, CallFault, failed_call
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.options import EtcdOptions
from tidelog.metadata.etcd.transport import Metadata
from tidelog.metadata.store import StoreUnavailableError

# etcd puts the SHA-256 of the store behind it.
SUM_BYTES: Final = 32
# How often another try is made when a member goes in the middle of a copy.
MAX_ATTEMPTS: Final = 3

_NAME: Final = re.compile(r"etcd-\d{8}-\d{6}\.db")
_UNFINISHED_NAME: Final = re.compile(r"etcd-\d{8}-\d{6}\.db\.part")


class BrokenSnapshotError(Exception):
    """What a member sent is not whole; the message says how."""


class SavedSnapshot(NamedTuple):
    """`revision` was the store's when the copy was asked for: it holds that, or more."""

    path: Path
    size_bytes: int
    revision: int
    endpoint: str


async def save_snapshot(options: EtcdOptions, path: Path, timeout_s: float) -> SavedSnapshot:
    """From the first member that answers and knows a leader; `path` is there whole, synced, or not at all.

    Raises StoreUnavailableError, BrokenSnapshotError, OSError, TimeoutError.
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
    """Of the names in a directory those to be removed: all but the newest `keep` snapshots, and what copies
    that were killed have left. Other names are never among them.
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
            if error.fault is CallFault.TOKEN:
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
    """The store's revision before the copy, and the size of the file."""
    status = await answer_of(connection.maintenance.Status(pb.StatusRequest(), metadata=metadata))
    if not status.leader:
        raise CallFailedError(CallFault.NOT_DONE, "the member knows no leader, its store may be old")
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
    """Writes the blobs; returns their size. Raises BrokenSnapshotError unless the sum at the end is right."""
    sum_of_store = hashlib.sha256()
    # The last bytes so far: nobody knows yet whether they are the sum.
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
        raise BrokenSnapshotError(f"the copy ended {remaining_bytes} bytes early")
    if size_bytes <= SUM_BYTES or sum_of_store.digest() != tail:
        raise BrokenSnapshotError("the copy's SHA-256 is not the one at its end")
    return size_bytes


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
