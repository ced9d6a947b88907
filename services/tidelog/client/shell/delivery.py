"""The outcome of one sent record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

from tidelog.client.core.delivery_errors import RequestTimeoutError
from tidelog.client.core.producer_batch import UNKNOWN_OFFSET, ProducerBatch
from tidelog.model.errors import KafkaError


class RecordMetadata(NamedTuple):
    """Where a record is stored.

    `offset` is -1 with acks=0, and for a repetition that the broker recognised without knowing the offset.
    `timestamp` is in milliseconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Delivery:
    """The outcome of one record: `await delivery` on asyncio, `delivery.result()` in threads.

    Both return RecordMetadata, or raise the KafkaError for which the record was not acknowledged.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def __repr__(self) -> str:
        return f"<Delivery to {self._batch.place}, {'done' if self.is_done else 'pending'}>"

    @property
    def is_done(self) -> bool:
        return self._batch.is_done

    @property
    def partition(self) -> int:
        return self._batch.place.partition

    def error(self) -> KafkaError | None:
        """Returns the error of a delivery that is done, None if the record was acknowledged."""
        return self._batch.error if self._batch.is_done else None

    def metadata(self) -> RecordMetadata:
        """Returns the outcome of a delivery that is done. Raises KafkaError."""
        batch = self._batch
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset
        appended_ms = batch.log_append_time_ms
        return RecordMetadata(
            *batch.place,
            offset if offset == UNKNOWN_OFFSET else offset + self._index,
            self._timestamp if appended_ms < 0 else appended_ms,
        )

    def add_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Calls `callback` when the delivery is done, in the event loop of the producer."""
        self._batch.when_done(lambda batch: callback(self))

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self._batch.is_done:
            done = asyncio.get_running_loop().create_future()
            self._batch.when_done(lambda batch: None if done.done() else done.set_result(None))
            yield from done.__await__()
        return self.metadata()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Blocks the thread until the delivery is done. Not for the thread of the event loop.

        Raises KafkaError; RequestTimeoutError if `timeout_s` ends first.
        """
        if not self._batch.is_done:
            done = threading.Event()
            self._batch.when_done(lambda batch: done.set())
            if not done.wait(timeout_s):
                raise RequestTimeoutError(f"the delivery to {self._batch.place} is pending")
        return self.metadata()
