"""Prints the records of a topic until there are enough, or until none arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import BinaryIO, Final

from tidelog.cli.record_formats import ColumnFormat, RecordFormatter
from tidelog.client.core.consumer_batch import ConsumerBatch
from tidelog.client.threads.topic_reader import POLL_S, TopicReader, sound_records
from tidelog.model.topics import TopicPartition

CHUNK_RECORDS: Final = 1_000
"""The most records that are formatted before they are written."""


class RecordPrinter:
    """Prints up to `max_messages` records, None for no limit, with up to `max_headers` headers each."""

    def __init__(
        self,
        record_format: RecordFormatter,
        output: BinaryIO,
        *,
        max_messages: int | None = None,
        max_headers: int | None = None,
    ) -> None:
        self._format = record_format
        self._output = output
        if isinstance(record_format, ColumnFormat):
            output.write(ColumnFormat.HEADING)
        self._max_messages = max_messages
        self._max_headers = max_headers
        self.printed = 0
        self.unfinished: dict[TopicPartition, int] = {}
        """The offset after the printed records of a batch that was not printed completely."""

    @property
    def is_done(self) -> bool:
        return self.printed == self._max_messages

    def print_batch(self, batch: ConsumerBatch[bytes, bytes]) -> None:
        """Raises CorruptFetchError for records that their producer damaged."""
        left = None if self._max_messages is None else self._max_messages - self.printed
        records = islice(sound_records(batch, max_headers=self._max_headers), left)
        line_of, partition = self._format.line_of, batch.partition
        self.unfinished = {batch.place: batch.start_offset}
        before = self.printed
        while chunk := list(islice(records, CHUNK_RECORDS)):
            self._output.write(b"".join([line_of(record, partition) for record in chunk]))
            self._output.flush()
            self.printed += len(chunk)
            self.unfinished[batch.place] = chunk[-1].offset + 1
        if self.printed - before == len(batch):
            self.unfinished = {}


def print_until_done(
    reader: TopicReader,
    printer: RecordPrinter,
    idle_ms: int | None,
    *,
    is_joining: Callable[[], bool] = lambda: False,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> None:
    """Prints records until the printer is done, or until none arrives for `idle_ms`, or if interrupted.

    The time of a rebalance does not count. Raises KafkaError, ClientError.
    """
    wait_s = POLL_S if idle_ms is None else min(POLL_S, idle_ms / 1000)
    last_seen_s = time.monotonic()
    while not printer.is_done and not is_interrupted():
        batch = reader.poll(wait_s)
        if batch is not None:
            printer.print_batch(batch)
        if batch is not None or is_joining():
            last_seen_s = time.monotonic()
        elif idle_ms is not None and (time.monotonic() - last_seen_s) * 1000 >= idle_ms:
            return
