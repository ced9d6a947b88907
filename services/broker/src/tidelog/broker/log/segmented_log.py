"""The segments of one partition: append at the end, read anywhere.

Path of an append: roll if the active segment is full or old -> `pwrite` -> index entry each
`index.interval.bytes` -> log end offset. Path of a read: place of the batch (remembered from the last read
that ended there, else index and a short walk) -> `FileRange`.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final

from tidelog.broker.log import time_lookup
from tidelog.broker.log.errors import LogStorageError, TornLogError
from tidelog.broker.log.file_range import FileRange
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.open_segments import OpenSegments
from tidelog.broker.log.partition_directory import PartitionDirectory
from tidelog.broker.log.segment import MAX_RELATIVE_OFFSET, NOT_OPEN, Segment
from tidelog.broker.log.segment_lookup import BatchPlace, batch_with, cut_at, end_before_offset
from tidelog.broker.log.time_index import TimeIndex
from tidelog.broker.log.time_lookup import TimestampedOffset
from tidelog.broker.log.transaction_index import AbortedTransaction, aborted_transaction
from tidelog.broker.partition.producer_state import CompletedTransaction
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import LOG_OVERHEAD_BYTES, BatchHeader

PLACES_REMEMBERED: Final = 64
"""Where the next read of that many sequential readers begins, per partition."""

LOOKUP_ATTEMPTS: Final = 5
"""By time, while segments come and go."""

_BASE_OFFSET = attrgetter("base_offset")
_ANY_TIMESTAMP_MAY_ROLL: Final = -2


class SegmentedLog:
    """Offsets, sizes and config may be read at any time. All else belongs to the event loop, but
    `offset_for_timestamp` and `max_timestamp_offset`, which any thread may call.

    Raises LogStorageError (KAFKA_STORAGE_ERROR) where the disk refuses; the log is then as it was before
    the call.
    """

    __slots__ = (
        "_active",
        "_config",
        "_max_index_entries",
        "_needs_cut",
        "_places",
        "_roll_after_timestamp",
        "_segments",
        "directory",
        "log_end_offset",
        "log_start_offset",
        "open_segments",
        "size_bytes",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        config: LogConfig,
        segments: list[Segment],
        *,
        open_segments: OpenSegments,
        log_start_offset: int,
    ) -> None:
        self.directory = directory
        self._segments = tuple(segments)
        self._active = segments[-1]
        self.open_segments = open_segments
        self.log_end_offset = self._active.next_offset
        self.log_start_offset = log_start_offset
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self._places: dict[int, BatchPlace] = {}  # next fetch offset -> where it begins
        self._needs_cut = False  # a failed append left bytes behind the end
        self.config = config

    # -- settings

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._roll_after_timestamp = self._last_timestamp_of(self._active)
        # The time index is never longer than the offset index, its entries are larger. Kafka keeps one entry
        # free.
        self._max_index_entries = max(1, config.segment_index_bytes // TimeIndex.ENTRY.size - 1)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last is the active one."""
        return self._segments

    # -- append

    def append(self, batch: memoryview | bytes | bytearray, header: BatchHeader, now_ms: int) -> None:
        """Write one batch whose offset and leader epoch are set. `header` is the batch's own.

        Raises LogStorageError; also KafkaError RECORD_LIST_TOO_LARGE for a batch that no segment can hold.
        """
        size = len(batch)
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        segment = self._active
        position = segment.size_bytes
        config = self._config
        if (
            position + size > config.segment_bytes
            or timestamp > self._roll_after_timestamp
            or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or segment.offset_index.entry_count >= self._max_index_entries
            or not position
        ):
            if size > config.segment_bytes:
                raise KafkaError(
                    ErrorCode.RECORD_LIST_TOO_LARGE,
                    f"A batch of {size} bytes is larger than segment.bytes, {config.segment_bytes}",
                )
            segment = self._segment_for(header, size, now_ms)
            position = segment.size_bytes
        if segment.fd == NOT_OPEN or self._needs_cut:
            self._prepare_write(segment)
        try:
            written = os.pwrite(segment.fd, batch, position)
        except OSError as error:
            raise self._undo_write(segment, f"{error.strerror}") from error
        if written != size:
            raise self._undo_write(segment, f"{written} of {size} bytes written")
        # The size first: what another thread then learns of times and index entries is within it.
        segment.size_bytes = position + size
        self.size_bytes += size
        segment.next_offset = self.log_end_offset = last_offset + 1
        segment.recently_used = True
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.offset_of_max_timestamp = last_offset
        if segment.bytes_since_index_entry > config.index_interval_bytes:
            segment.add_index_entries(last_offset, position)
            segment.bytes_since_index_entry = size
        else:
            segment.bytes_since_index_entry += size

    def append_received(self, records: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> int:
        """Write batches as a leader's log has them, in one write; `headers` are those of the batches that lie
        one after the other from the beginning of `records`.

        How many were written: those that go to one segment, for at a roll the producer state has to stand
        where the log ends. A batch above `segment.bytes` gets a segment of its own: the leader has it, so
        its followers need it. Raises LogStorageError.
        """
        segment = self._segment_received(headers[0], now_ms)
        begin = segment.size_bytes
        room = self._config.segment_bytes - begin
        interval_bytes = self._config.index_interval_bytes
        roll_after = max(self._roll_after_timestamp, headers[0].max_timestamp)
        entries_left = self._max_index_entries - segment.offset_index.entry_count
        offset_limit = segment.base_offset + MAX_RELATIVE_OFFSET
        max_timestamp, offset_of_max = segment.max_timestamp, segment.offset_of_max_timestamp
        unindexed = segment.bytes_since_index_entry
        entries: list[tuple[int, int, int, int]] = []
        count = size = last_offset = 0
        for base_offset, length, _, _, _, _, last_delta, _, timestamp, _, _, _, _ in headers:
            batch_bytes = length + LOG_OVERHEAD_BYTES
            if size and (
                size + batch_bytes > room
                or timestamp > roll_after
                or base_offset + last_delta > offset_limit
                or len(entries) >= entries_left
            ):
                break
            last_offset = base_offset + last_delta
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max = timestamp, last_offset
            if unindexed > interval_bytes:
                entries.append((last_offset, begin + size, max_timestamp, offset_of_max))
                unindexed = batch_bytes
            else:
                unindexed += batch_bytes
            size += batch_bytes
            count += 1
        self._write(segment, records[:size], begin)
        segment.size_bytes = begin + size
        self.size_bytes += size
        segment.next_offset = self.log_end_offset = last_offset + 1
        segment.recently_used = True
        for offset, position, segment.max_timestamp, segment.offset_of_max_timestamp in entries:
            segment.add_index_entries(offset, position)
        segment.max_timestamp, segment.offset_of_max_timestamp = max_timestamp, offset_of_max
        segment.bytes_since_index_entry = unindexed
        return count

    def index_aborted(self, transaction: CompletedTransaction) -> None:
        """The last batch appended is the marker that aborted it."""
        self._active.transaction_index.append(aborted_transaction(transaction))

    def _segment_received(self, header: BatchHeader, now_ms: int) -> Segment:
        size = header.size_bytes
        segment = self._active
        if (
            segment.size_bytes + size > self._config.segment_bytes
            or header.max_timestamp > self._roll_after_timestamp
            or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
            or segment.offset_index.entry_count >= self._max_index_entries
            or not segment.size_bytes
        ):
            segment = self._segment_for(header, size, now_ms)
        if segment.fd == NOT_OPEN or self._needs_cut:
            self._prepare_write(segment)
        return segment

    def _write(self, segment: Segment, data: memoryview, position: int) -> None:
        try:
            written = os.pwrite(segment.fd, data, position)
        except OSError as error:
            raise self._undo_write(segment, f"{error.strerror}") from error
        if written != len(data):
            raise self._undo_write(segment, f"{written} of {len(data)} bytes written")

    def _segment_for(self, header: BatchHeader, size: int, now_ms: int) -> Segment:
        """The segment the batch goes to, a new one if the active one can't or should not take it."""
        segment, config = self._active, self._config
        if segment.size_bytes:
            if segment.first_timestamp < 0:
                waited_ms = now_ms - segment.created_ms
            else:
                waited_ms = header.max_timestamp - segment.first_timestamp
            if (
                segment.size_bytes + size > config.segment_bytes
                or waited_ms > config.segment_ms - self._jitter_ms(segment)
                or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
                or segment.offset_index.entry_count >= self._max_index_entries
            ):
                segment = self._roll(header.base_offset, now_ms)
        elif header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            segment = self._roll(header.base_offset, now_ms)
        if not segment.size_bytes:
            segment.first_timestamp = header.max_timestamp
            self._roll_after_timestamp = self._last_timestamp_of(segment)
        if header.max_timestamp < 0:
            segment.last_append_ms = now_ms
        return segment

    def _last_timestamp_of(self, segment: Segment) -> int:
        """A batch with a later timestamp may have to go to a new segment (`segment.ms`)."""
        if segment.first_timestamp < 0:
            return _ANY_TIMESTAMP_MAY_ROLL
        return segment.first_timestamp + self._config.segment_ms - self._jitter_ms(segment)

    def _jitter_ms(self, segment: Segment) -> int:
        """Spreads the rolls of partitions that began together; the same for a segment each time."""
        limit_ms = self._config.segment_jitter_ms
        return zlib.crc32(segment.path.encode()) % limit_ms if limit_ms > 0 else 0

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        if self._active.size_bytes:
            self._roll(self.log_end_offset, now_ms)

    def _before_roll(self) -> None:
        """For what is kept per segment beside it. Raises OSError."""

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        previous = self._active
        segment = Segment(self.directory, base_offset, self.open_segments, created_ms=now_ms)
        try:
            self._cut_failed_append()
            previous.finish()
            self._before_roll()
            segment.create_files()
        except OSError as error:
            raise LogStorageError(f"{segment.path} can't be made: {error}") from error
        if previous.size_bytes:
            self._segments = (*self._segments, segment)
        else:
            previous.forget()
            previous.remove_files()
            self._segments = (*self._segments[:-1], segment)
        self._active = segment
        self._roll_after_timestamp = _ANY_TIMESTAMP_MAY_ROLL
        return segment

    def _prepare_write(self, segment: Segment) -> None:
        try:
            segment.open_file()
            self._cut_failed_append()
        except OSError as error:
            raise LogStorageError(f"{segment.path}: {error}") from error

    def _cut_failed_append(self) -> None:
        """Raises OSError. Not to be left for later when the segment is finished: what is behind its end would
        end the log there at the next recovery.
        """
        if self._needs_cut:
            os.ftruncate(self._active.open_file(), self._active.size_bytes)
            self._needs_cut = False

    def _undo_write(self, segment: Segment, reason: str) -> LogStorageError:
        """What was written of a batch goes again, now or before the next append."""
        try:
            os.ftruncate(segment.fd, segment.size_bytes)
        except OSError:
            self._needs_cut = True
        return LogStorageError(f"{segment.path}: append failed: {reason}")

    # -- read

    def read(
        self, fetch_offset: int, max_bytes: int, upper_offset: int, *, at_least_one_batch: bool = True
    ) -> FileRange | None:
        """Whole batches of one segment from the batch that holds `fetch_offset` on, all below `upper_offset`;
        None if there are none.

        At most `max_bytes`, but at least one batch if asked. The range is to be released.
        Raises KafkaError OFFSET_OUT_OF_RANGE outside log start and end.
        """
        if fetch_offset < self.log_start_offset or fetch_offset > self.log_end_offset:
            raise self._out_of_range(fetch_offset)
        if fetch_offset >= upper_offset:
            return None
        place = self._places.get(fetch_offset)
        try:
            if place is None or place.position >= place.segment.size_bytes:
                place = self._find(fetch_offset)
                if place is None:
                    return None
            segment, position, slot = place
            end, next_offset = segment.size_bytes, segment.next_offset
            if upper_offset < next_offset:
                end, next_offset = self._end_below(segment, upper_offset), upper_offset
            if end - position > max_bytes:
                cut = cut_at(place, position + max_bytes, end, at_least_one_batch=at_least_one_batch)
                if cut is None:
                    return None
                end, next_offset, slot = cut
            if end <= position:
                return None
            if segment.fd == NOT_OPEN:
                segment.open_file()
        except FileNotFoundError as error:
            raise self._out_of_range(fetch_offset) from error  # retention removed it this moment
        except (OSError, TornLogError) as error:
            raise LogStorageError(
                f"{self.directory.path}: reading offset {fetch_offset} failed: {error}"
            ) from error
        segment.recently_used = True
        self._remember(next_offset, BatchPlace(segment, end, slot))
        return FileRange(segment, position, end - position, next_offset)

    def _find(self, fetch_offset: int) -> BatchPlace | None:
        """Binary search over the segments, then in the segment; what compaction emptied is stepped over."""
        segments = self._segments
        at = max(0, bisect_right(segments, fetch_offset, key=_BASE_OFFSET) - 1)
        for segment in segments[at:]:
            if segment.size_bytes and fetch_offset < segment.next_offset:
                place = batch_with(segment, fetch_offset)
                if place is not None:
                    self._remember(fetch_offset, place)
                    return place
        return None

    def _end_below(self, segment: Segment, upper_offset: int) -> int:
        known = self._places.get(upper_offset)
        if known is not None and known.segment is segment:
            return known.position
        return end_before_offset(segment, upper_offset)

    def _remember(self, offset: int, place: BatchPlace) -> None:
        places = self._places
        places[offset] = place
        if len(places) > PLACES_REMEMBERED:
            del places[next(iter(places))]

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset}: {self.directory.path} has {self.log_start_offset} to {self.log_end_offset}",
        )

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Those with records in the range, in the order of their markers; some may have none in it. Raises
        LogStorageError.
        """
        segments = self._segments
        found: list[AbortedTransaction] = []
        at = max(0, bisect_right(segments, from_offset, key=_BASE_OFFSET) - 1)
        try:
            for segment in segments[at:]:
                if segment.transaction_index.collect(from_offset, upper_offset, found):
                    break
        except OSError as error:
            raise LogStorageError(f"{self.directory.path}: no transaction index: {error}") from error
        return found

    def aborted_across(self, offset: int) -> list[AbortedTransaction]:
        """Those with records below `offset`, the beginning of a segment, and the marker at or above it.

        Raises LogStorageError.
        """
        return [found for found in self.aborted_transactions(offset, offset) if found.last_offset >= offset]

    # -- lookup by time

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """The first record at or after `timestamp` (ms), None if there is none. Reads; any thread."""
        return self._looked_up(
            lambda: time_lookup.first_at_or_after(self._segments, timestamp, self.log_start_offset)
        )

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The first record of the greatest timestamp (KIP-734), None in an empty log. Reads the disk; any
        thread.
        """
        return self._looked_up(lambda: time_lookup.of_max_timestamp(self._segments))

    def _looked_up(self, lookup: Callable[[], TimestampedOffset | None]) -> TimestampedOffset | None:
        try:
            for _ in range(LOOKUP_ATTEMPTS - 1):
                with suppress(FileNotFoundError):  # a segment went meanwhile: look in what is there now
                    return lookup()
            return lookup()
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{self.directory.path}: lookup by time failed: {error}") from error

    def close_files(self) -> None:
        """Free the descriptors and write nothing."""
        for segment in self._segments:
            segment.close_files()
