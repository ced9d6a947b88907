"""Records packed into the store's transactions: at most 128 operations and 1 MiB each, in the records'
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.controller.core.records import ABSENT, Erase, Record, Write
from tidelog.metadata import keys
from tidelog.metadata.entries import PartitionStateEntry
from tidelog.metadata.store import MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Compare, Delete, Get, Put
from tidelog.model.brokers import BrokerRegistration

# Keys of the failure branch's Gets count into the size as well.
_BYTES_PER_OPERATION: Final = 2 * 400


@dataclass(slots=True)
class Batch:
    """One transaction. `reads` are the compared keys: what a refusal has to be judged by."""

    compares: dict[str, Compare]
    records: list[Record] = field(default_factory=list)
    operations: list[Put | Delete] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def reads(self) -> list[Get]:
        return [Get(key) for key in self.compares]


def pack_records(
    records: Iterable[Record], guard: Compare, brokers: Mapping[int, BrokerRegistration]
) -> list[Batch]:
    """Each batch compares `guard` first (the controller's own key), then what its records expect.

    The new state of a partition that was already there also compares the registration of the leader it
    names: see `settle_partitions`.
    """
    batches: list[Batch] = []
    for record in records:
        compares = _compares_of(record, brokers)
        operation: Put | Delete
        if isinstance(record, Write):
            operation = Put(record.entry.key, record.entry.encode())
            size_bytes = len(operation.value) + _BYTES_PER_OPERATION
        else:
            operation = Delete(record.key)
            size_bytes = _BYTES_PER_OPERATION
        batch = batches[-1] if batches else None
        if batch is None or not _fits(batch, compares, size_bytes):
            batch = Batch({guard.key: guard})
            batches.append(batch)
        batch.compares.update(compares)
        batch.records.append(record)
        batch.operations.append(operation)
        batch.size_bytes += size_bytes
    return batches


def _fits(batch: Batch, compares: Mapping[str, Compare], size_bytes: int) -> bool:
    return (
        len(batch.operations) < MAX_TXN_OPERATIONS
        and len(batch.compares.keys() | compares.keys()) <= MAX_TXN_OPERATIONS
        and batch.size_bytes + size_bytes <= MAX_TXN_BYTES
    )


def _compares_of(record: Record, brokers: Mapping[int, BrokerRegistration]) -> dict[str, Compare]:
    expected = record.expected_mod_revision
    if expected is None:
        return {}
    if isinstance(record, Erase):
        return {record.key: Compare.mod_revision(record.key, expected)}
    entry = record.entry
    compares = {entry.key: Compare.mod_revision(entry.key, expected)}
    if isinstance(entry, PartitionStateEntry) and expected != ABSENT:
        leader = brokers.get(entry.leader)
        if leader is not None:
            key = keys.broker_id(leader.broker_id)
            compares[key] = Compare.create_revision(key, leader.broker_epoch)
    return compares
