"""The outcome of sent records."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, NoReturn

from tidelog.client.core.producing.producer_batch import ProducerBatch
from tidelog.client.errors import RequestTimeoutError
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import UNKNOWN_OFFSET

_NOT_PICKLED: Final = (
    "a delivery belongs to the process of its producer and cannot be pickled: wait for it, and pickle what "
    "it returns"
)
"""A copy in another process would wait forever, because nobody completes it."""


class RecordMetadata(NamedTuple):
    """Where a record is stored.

    `offset` is -1 with acks=0, and for a repetition that the broker recognised without knowing the offset.
    `timestamp` is in milliseconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class StoredRange(NamedTuple):
    """Records with consecutive offsets. `first_offset` is -1 where RecordMetadata's `offset` is."""

    topic: str
    partition: int
    first_offset: int
    record_count: int


class Delivery:
    """The outcome of one record: `await delivery` on asyncio, `delivery.result()` in threads.

    Both return RecordMetadata, or raise the KafkaError for which the record was not acknowledged.
    """

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def __reduce__(self) -> NoReturn:
        raise TypeError(_NOT_PICKLED)

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
        if not self._batch.is_done:
            return None
        ((batch, _, _),) = self._batch.runs_of(self._index, 1)
        return batch.error

    def metadata(self) -> RecordMetadata:
        """Returns the outcome of a delivery that is done. Raises KafkaError."""
        ((batch, index, _),) = self._batch.runs_of(self._index, 1)
        if batch.error is not None:
            raise batch.error
        offset = batch.base_offset
        appended_ms = batch.log_append_time_ms
        return RecordMetadata(
            *batch.place,
            offset if offset == UNKNOWN_OFFSET else offset + index,
            self._timestamp if appended_ms < 0 else appended_ms,
        )

    def add_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Calls `callback` when the delivery is done, in the event loop of the producer."""
        self._batch.when_done(lambda batch: callback(self))

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        yield from finished(self._batch).__await__()
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


class BatchDelivery:
    """The outcome of records that were sent together: `await delivery`, or `delivery.result()` in threads.

    Both return where the records are stored, in their order, or raise the KafkaError of the first record
    that was not acknowledged. `errors` returns the errors of all.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[ProducerBatch, int, int]] = []
        """A batch, the index of the first record in it, and the number of records."""

    def __len__(self) -> int:
        """Returns the number of records."""
        return sum(count for _, _, count in self._runs)

    def __reduce__(self) -> NoReturn:
        raise TypeError(_NOT_PICKLED)

    def __repr__(self) -> str:
        return f"<BatchDelivery of {len(self)} records, {'done' if self.is_done else 'pending'}>"

    @property
    def is_done(self) -> bool:
        return all(batch.is_done for batch, _, _ in self._runs)

    def add(self, batch: ProducerBatch, first: int, count: int) -> None:
        """Counts records of a batch as sent, from the index `first` in it."""
        if self._runs:
            last, start, before = self._runs[-1]
            if last is batch and start + before == first:
                self._runs[-1] = (batch, start, before + count)
                return
        self._runs.append((batch, first, count))

    def first(self, timestamp: int) -> Delivery:
        """Returns the outcome of the first record, which was sent with this timestamp."""
        batch, index, _ = self._runs[0]
        return Delivery(batch, index, timestamp)

    def stored(self) -> list[StoredRange]:
        """Returns the outcome of a delivery that is done. Raises KafkaError."""
        found = []
        for batch, first, count in self._stored_runs():
            if batch.error is not None:
                raise batch.error
            base = batch.base_offset
            offset = base if base == UNKNOWN_OFFSET else base + first
            found.append(StoredRange(*batch.place, offset, count))
        return found

    def _stored_runs(self) -> Iterator[tuple[ProducerBatch, int, int]]:
        """Yields the runs in the batches that have the records now, which are parts if a batch was split."""
        for batch, first, count in self._runs:
            yield from batch.runs_of(first, count)

    def errors(self) -> list[tuple[int, KafkaError]]:
        """Returns the index of the first record and the error of each run of records that failed so far."""
        found, index = [], 0
        for batch, _, count in self._stored_runs():
            if batch.is_done and batch.error is not None:
                found.append((index, batch.error))
            index += count
        return found

    def __await__(self) -> Generator[object, None, list[StoredRange]]:
        for batch, _, _ in self._runs:
            yield from finished(batch).__await__()
        return self.stored()

    def result(self, timeout_s: float | None = None) -> list[StoredRange]:
        """Blocks the thread until all records are done. Not for the thread of the event loop.

        Raises KafkaError; RequestTimeoutError if `timeout_s` ends first.
        """
        left = threading.Semaphore(0)
        batches = dict.fromkeys(batch for batch, _, _ in self._runs)
        for batch in batches:
            batch.when_done(lambda batch: left.release())
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for batch in batches:
            if not left.acquire(timeout=None if end_s is None else max(0, end_s - time.monotonic())):
                raise RequestTimeoutError(f"the delivery to {batch.place} is pending")
        return self.stored()


async def finished(batch: ProducerBatch) -> None:
    """Waits for the outcome of a batch on asyncio."""
    if not batch.is_done:
        done = asyncio.get_running_loop().create_future()
        batch.when_done(lambda batch: None if done.done() else done.set_result(None))
        await done
