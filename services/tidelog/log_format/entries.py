"""The binary files beside a segment: its indexes, and the snapshots of the producer state.

The indexes consist of entries of a fixed size. An entry of the offset index has the last offset and the
position of a batch, one of the time index the greatest timestamp so far and the last offset of the batch that
has it. Both count offsets from the segment's base offset. An entry of the transaction index is an aborted
transaction whose marker is in the segment (Kafka's `AbortedTxn`).

A snapshot has the version int16, the crc uint32, the count int32, and then 46 bytes per entry. The CRC-32C
covers all bytes after it. Sources: Kafka's `ProducerSnapshot` message and `ProducerStateManager`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.log_format.directory import CorruptFileError
from tidelog.records.aborted import AbortedTransaction

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
"""The version, and the fields of an AbortedTransaction."""
ABORTED_VERSION: Final = 0

SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
"""The fields of a SnapshotEntry, in its order."""


def encode_aborted_transactions(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(ABORTED_ENTRY.pack(ABORTED_VERSION, *entry) for entry in entries)


def decode_aborted_transactions(data: bytes | bytearray, base_offset: int = 0) -> list[AbortedTransaction]:
    """Raises CorruptFileError if an entry is incomplete, of another version or out of order."""
    if len(data) % ABORTED_ENTRY.size:
        raise CorruptFileError(f"transaction index of {len(data)} bytes")
    entries, previous = [], base_offset - 1
    for version, *fields in ABORTED_ENTRY.iter_unpack(data):
        entry = AbortedTransaction._make(fields)
        if (
            version != ABORTED_VERSION
            or entry.last_offset <= previous
            or entry.first_offset > entry.last_offset
        ):
            raise CorruptFileError(f"transaction index holds {entry} of version {version}")
        previous = entry.last_offset
        entries.append(entry)
    return entries


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
    return complete_snapshot(b"".join(SNAPSHOT_ENTRY.pack(*entry) for entry in entries))


def complete_snapshot(entries: bytes | bytearray) -> bytes:
    """Returns the contents of the file with these entries, each packed by SNAPSHOT_ENTRY."""
    body = _COUNT.pack(len(entries) // SNAPSHOT_ENTRY.size) + entries
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
    if not 0 <= count * SNAPSHOT_ENTRY.size <= len(entries):
        raise CorruptFileError(f"the producer snapshot states {count} entries in {len(entries)} bytes")
    return [
        SnapshotEntry._make(fields)
        for fields in SNAPSHOT_ENTRY.iter_unpack(entries[: count * SNAPSHOT_ENTRY.size])
    ]
