"""Sends the records of lines, and raises the error of the first one that is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidelog.client.shell.producing.delivery import BatchDelivery
from tidelog.client.threads.producer import Producer
from tidelog.records.record import Record


class LineSender:
    """The records that were sent to a topic.

    The key selects the partition as in Kafka. Records without a key fill one partition's batch after another.
    """

    def __init__(self, producer: Producer[bytes, bytes], topic: str, partition: int | None = None) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._pending: deque[BatchDelivery] = deque()
        self.sent_records = 0

    def send(self, records: Sequence[Record], timestamp_ms: int) -> None:
        """Raises KafkaError for these records or for earlier ones."""
        has_keys = any(record.key is not None for record in records)
        has_headers = any(record.headers for record in records)
        delivery = self._producer.send_batch(
            self._topic,
            [record.value for record in records],
            keys=[record.key for record in records] if has_keys else None,
            headers=[record.headers for record in records] if has_headers else None,
            partition=self._partition,
            timestamp=timestamp_ms,
        )
        self._pending.append(delivery)
        while self._pending and self._pending[0].is_done:
            self._count(self._pending.popleft())

    def flush(self) -> None:
        """Waits until all records are acknowledged. Raises KafkaError."""
        while self._pending:
            delivery = self._pending.popleft()
            delivery.result()
            self._count(delivery)

    def _count(self, delivery: BatchDelivery) -> None:
        delivery.stored()  # raises the error of a record that was refused
        self.sent_records += len(delivery)
