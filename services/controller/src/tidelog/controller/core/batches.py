"""Records packed into the store's transactions: at most 128 operations and 1 MiB each, in the records'
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from tidelog.controller.core.records import ABSENT, Erase, NoteShutdown, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata import keys
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.metadata.store import MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Compare, Delete, Get, Put

StoredRecord = Write | Erase

# One key is the shell's own: that of the controller's office.
MAX_KEYS: Final = MAX_TXN_OPERATIONS - 1
# Keys of the failure branch's Gets count into the size as well.
_BYTES_PER_OPERATION: Final = 2 * 400


@dataclass(slots=True)
class Batch:
    """One transaction. `keys` are those it compares or writes: a refusal, or an outcome that nobody knows,
    is judged by what stands there.
    """

    compares: dict[str, Compare] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def reads(self) -> list[Get]:
        return [Get(key) for key in self.keys]


def pack_records(records: Iterable[StoredRecord | NoteShutdown], state: ClusterState) -> list[list[Batch]]:
    """Groups of batches: a group may be written side by side, one group after the other.

    Each compares what its records expect. The new state of a partition that was already there also compares
    the registration of the leader it names: see `settle_partitions`.
    """
    stored = [record for record in records if not isinstance(record, NoteShutdown)]
    groups: list[list[Batch]] = []
    for is_unordered, run in groupby(stored, key=_is_partition_state):
        batches = list(_packed(run, state))
        if is_unordered and len(batches) > 1:
            groups.append(batches)
            continue
        for batch in batches:
            # In one transaction order is no question.
            if not (groups and len(groups[-1]) == 1 and _joined(groups[-1][0], batch)):
                groups.append([batch])
    return groups


def key_of(record: StoredRecord) -> str:
    return record.entry.key if isinstance(record, Write) else record.key


def _is_partition_state(record: StoredRecord) -> bool:
    return keys.parse_partition_state(key_of(record)) is not None


def _packed(records: Iterable[StoredRecord], state: ClusterState) -> Iterator[Batch]:
    batch = Batch()
    for record in records:
        single = _batch_of(record, state)
        if not _joined(batch, single):
            if batch.records:
                yield batch
            batch = single
    if batch.records:
        yield batch


def _batch_of(record: StoredRecord, state: ClusterState) -> Batch:
    compares = _compares_of(record, state)
    operation: Put | Delete
    if isinstance(record, Write):
        operation = Put(record.entry.key, record.entry.encode())
        size_bytes = len(operation.value) + _BYTES_PER_OPERATION
    else:
        operation = Delete(record.key)
        size_bytes = _BYTES_PER_OPERATION
    return Batch(compares, dict.fromkeys([operation.key, *compares]), [record], [operation], size_bytes)


def _joined(batch: Batch, other: Batch) -> bool:
    """Whether `other` went into `batch`."""
    if len(batch.keys.keys() | other.keys.keys()) > MAX_KEYS:
        return False
    if batch.size_bytes + other.size_bytes > MAX_TXN_BYTES:
        return False
    batch.compares.update(other.compares)
    batch.keys.update(other.keys)
    batch.records += other.records
    batch.operations += other.operations
    batch.size_bytes += other.size_bytes
    return True


def _compares_of(record: StoredRecord, state: ClusterState) -> dict[str, Compare]:
    expected = record.expected_mod_revision
    if expected is None:
        return {}
    key = key_of(record)
    compares = {key: Compare.mod_revision(key, expected)}
    entry = record.entry if isinstance(record, Write) else None
    if isinstance(entry, PartitionStateEntry) and expected != ABSENT:
        leader = state.brokers.get(entry.leader)
        if leader is not None:
            broker_key = keys.broker_id(leader.broker_id)
            compares[broker_key] = Compare.create_revision(broker_key, leader.broker_epoch)
    return compares
