"""Collects records into one batch for each partition, and sends them when a batch is full or on request."""

from __future__ import annotations

import random
from typing import Final

from tidelog.client.batch_sender import BatchSender
from tidelog.client.partitioner import partition_for_key
from tidelog.records.record import Record

RECORD_OVERHEAD_BYTES: Final = 21
"""The assumed size of a record's own fields. An exact size is not needed."""


class RecordBatcher:
    """The open batches.

    The key selects the partition as in Kafka. Records without a key fill one partition's batch after another.
    """

    def __init__(self, sender: BatchSender, *, batch_bytes: int, partition: int | None = None) -> None:
        self._sender = sender
        self._batch_bytes = batch_bytes
        self._fixed_partition = partition
        self._num_partitions = len(sender.topic.partitions)
        self._sticky_partition = random.randrange(self._num_partitions)
        self._waiting: dict[int, list[Record]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self.sent_records = 0

    def add(self, record: Record) -> None:
        """Adds a record. Raises the exceptions of BatchSender.send."""
        index = self._partition_of(record)
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self._waiting_bytes.get(index, 0) + size > self._batch_bytes:
            self.flush()
            index = self._partition_of(record)
        rows = self._waiting.setdefault(index, [])
        rows.append(record._replace(offset=len(rows)))
        self._waiting_bytes[index] = self._waiting_bytes.get(index, 0) + size

    def flush(self) -> None:
        """Sends all batches, with one request for each leader."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, {}
        self._sticky_partition = (self._sticky_partition + 1) % self._num_partitions
        if waiting:
            self._sender.send(waiting)
            self.sent_records += sum(map(len, waiting.values()))

    def _partition_of(self, record: Record) -> int:
        if self._fixed_partition is not None:
            return self._fixed_partition
        if record.key is None:
            return self._sticky_partition
        return partition_for_key(record.key, self._num_partitions)
