"""The `.snapshot` file of producer state: version int16, crc uint32, count int32, then 46 bytes per entry.

The CRC-32C covers all bytes after it. Sources: Kafka's `ProducerSnapshot` message and `ProducerStateManager`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from tidelog.log_format.directory import CorruptFileError

SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
ENTRY = struct.Struct(">qhiqiqiq")
"""The fields of a SnapshotEntry, in its order."""


class SnapshotEntry(NamedTuple):
    """One batch of a producer. `last_offset` is -1 if there is none, `txn_first_offset` if no transaction is
    open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    return complete_snapshot(b"".join(ENTRY.pack(*entry) for entry in entries))


def complete_snapshot(entries: bytes | bytearray) -> bytes:
    """Returns the contents of the file with these entries, each packed by ENTRY."""
    body = _COUNT.pack(len(entries) // ENTRY.size) + entries
    return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """Returns the entries in the order of the file. Raises CorruptFileError."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptFileError(f"the producer snapshot of {len(data)} bytes is too short")
    version, crc = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptFileError(f"the producer snapshot has the unknown version {version}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptFileError("the CRC of the producer snapshot does not match")
    count = _COUNT.unpack_from(body)[0]
    entries = body[_COUNT.size :]
    if not 0 <= count * ENTRY.size <= len(entries):
        raise CorruptFileError(f"the producer snapshot states {count} entries in {len(entries)} bytes")
    return [SnapshotEntry._make(fields) for fields in ENTRY.iter_unpack(entries[: count * ENTRY.size])]
