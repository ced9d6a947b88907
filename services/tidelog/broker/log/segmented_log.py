"""The segments of one partition: append at the end, read anywhere.

The path of an append is: decide whether a segment must roll -> `pwrite` -> an index entry each
`index.interval.bytes` -> log end offset. The path of a read is: place of the batch (remembered from the
last read that ended there, else index and a short walk) -> `FileRange`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from tidelog.broker.log import time_lookup
from tidelog.broker.log.directory_files import LogStorageError, PartitionDirectory, SegmentsCheckpoint
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.segment import (
    MAX_RELATIVE_OFFSET,
    NOT_OPEN,
    BatchPlace,
    FileRange,
    OpenSegments,
    Segment,
    batch_with,
    end_at_limit,
    end_before_offset,
    segment_index,
)
from tidelog.broker.log.segment_indexes import AbortedSearch, TimeIndex, aborted_transaction
from tidelog.broker.log.time_lookup import TimestampedOffset
from tidelog.broker.partition.producer_state import CompletedTransaction
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import TornLogError
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import LOG_OVERHEAD_BYTES, BatchHeader, known_max_timestamp

PLACES_REMEMBERED: Final = 64
"""The number of sequential readers of a partition whose next position the log remembers."""

LOOKUP_ATTEMPTS: Final = 5
"""The number of attempts of a lookup by time while segments are added and removed."""


class SegmentedLog:
    """A log of at least one segment; the last one is active.

    Any thread may read the offsets, the size and the config, and may call `offset_for_timestamp` and
    `max_timestamp_offset`. Everything else belongs to the event loop, or to the one thread that
    `PartitionLog` lets truncate, open or close the log.

    Methods raise LogStorageError (KAFKA_STORAGE_ERROR) if the disk fails. The log is then as before.
    """

    __slots__ = (
        "_active",
        "_config",
        "_max_index_entries",
        "_max_offset",
        "_needs_cut",
        "_places",
        "_roll_after_ms",
        "_segments",
        "checkpoint",
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
        segments: Sequence[Segment],
        checkpoint: SegmentsCheckpoint,
        *,
        open_segments: OpenSegments,
        log_start_offset: int,
    ) -> None:
        self.directory = directory
        self.checkpoint = checkpoint
        self.open_segments = open_segments
        self.log_start_offset = log_start_offset
        self._places: dict[int, BatchPlace] = {}  # next fetch offset -> where it begins
        self._needs_cut = False  # whether a failed append left bytes behind the end
        self._segments = tuple(segments)
        self._active = segments[-1]
        self.log_end_offset = self._active.next_offset
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self._roll_after_ms = self._max_offset = 0  # `config` sets them
        self._config = config
        self.config = config

    # -- settings

    @property
    def config(self) -> LogConfig:
        """The topic settings that the log follows."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._set_roll_limits()
        # The time index is never longer than the offset index, and its entries are larger. Kafka keeps one
        # entry free.
        self._max_index_entries = max(1, config.segment_index_bytes // TimeIndex.ENTRY.size - 1)

    # -- append

    def append(self, batch: memoryview | bytes | bytearray, header: BatchHeader, now_ms: WallMs) -> bool:
        """Writes one batch whose offset and leader epoch are set; `header` is the batch's own.

        Returns False, and writes nothing, if a new segment must begin first: the caller then rolls and calls
        this again. Raises KafkaError RECORD_LIST_TOO_LARGE for a batch that no segment can hold.
        """
        size = len(batch)
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if timestamp < header.base_timestamp:
            timestamp = known_max_timestamp(header)
        segment = self._active
        position = segment.size_bytes
        config = self._config
        if self._must_roll(position, segment.offset_index.entry_count, size, last_offset, timestamp, now_ms):
            self._check_fits(size)
            return False
        if not position:
            self._check_fits(size)
            self._begin(segment, timestamp)
        if timestamp < 0:
            segment.last_append_ms = now_ms
            segment.note_unknown_times(header)
        self._write(segment, batch, size, position)
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
        return True

    def append_received(self, records: memoryview, headers: Sequence[BatchHeader], now_ms: WallMs) -> int:
        """Writes consecutive batches from a leader's log, in one write; `headers` are those of `records`.

        Returns how many were written: those that fit into the active segment. If that is 0, the caller rolls
        and calls this again. A batch above `segment.bytes` gets a segment of its own: the leader has it, so
        its followers need it.
        """
        segment = self._active
        begin, first_entry = segment.size_bytes, segment.offset_index.entry_count
        first = headers[0]
        first_ms = known_max_timestamp(first)
        if self._must_roll(begin, first_entry, first.size_bytes, first.last_offset, first_ms, now_ms):
            return 0
        if not begin:
            self._begin(segment, first_ms)
        interval_bytes = self._config.index_interval_bytes
        max_timestamp, offset_of_max = segment.max_timestamp, segment.offset_of_max_timestamp
        unindexed = segment.bytes_since_index_entry
        entries: list[tuple[int, int, int, int]] = []
        count = size = last_offset = 0
        for header in headers:
            base_offset, length, _, _, _, _, last_delta, base_timestamp, timestamp, _, _, _, _ = header
            batch_bytes = length + LOG_OVERHEAD_BYTES
            if timestamp < base_timestamp:
                timestamp = known_max_timestamp(header)
            if count and self._must_roll(
                begin + size,
                first_entry + len(entries),
                batch_bytes,
                base_offset + last_delta,
                timestamp,
                now_ms,
            ):
                break
            last_offset = base_offset + last_delta
            if timestamp < 0:
                segment.last_append_ms = now_ms
                segment.note_unknown_times(header)
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max = timestamp, last_offset
            if unindexed > interval_bytes:
                entries.append((last_offset, begin + size, max_timestamp, offset_of_max))
                unindexed = batch_bytes
            else:
                unindexed += batch_bytes
            size += batch_bytes
            count += 1
        self._write(segment, records[:size], size, begin)
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
        """Notes an aborted transaction, whose marker is in the last batch, in the transaction index."""
        self._active.transaction_index.append(aborted_transaction(transaction))

    def _write(
        self, segment: Segment, data: memoryview | bytes | bytearray, size: int, position: int
    ) -> None:
        if segment.fd == NOT_OPEN or self._needs_cut:
            self._prepare_write(segment)
        try:
            written = os.pwrite(segment.fd, data, position)
        except OSError as error:
            raise self._undo_write(segment, f"{error.strerror}") from error
        if written != size:
            raise self._undo_write(segment, f"{written} of {size} bytes written")

    def _prepare_write(self, segment: Segment) -> None:
        try:
            segment.open_file()
            self._cut_failed_append()
        except OSError as error:
            raise LogStorageError(f"{segment.path}: {error}") from error

    def _undo_write(self, segment: Segment, reason: str) -> LogStorageError:
        """Removes the written part of a batch now or, if that fails, before the next append."""
        try:
            os.ftruncate(segment.fd, segment.size_bytes)
        except OSError:
            self._needs_cut = True
        return LogStorageError(f"{segment.path}: append failed: {reason}")

    def _cut_failed_append(self) -> None:
        """Removes what a failed append left behind the end. Raises OSError.

        This must be done before the segment is finished, because the next recovery would cut the log there.
        """
        if self._needs_cut:
            os.ftruncate(self._active.open_file(), self._active.size_bytes)
            self._needs_cut = False

    # -- rolling

    def _must_roll(
        self,
        segment_bytes: int,
        index_entries: int,
        batch_bytes: int,
        last_offset: int,
        timestamp: int,
        now_ms: WallMs,
    ) -> bool:
        """Returns whether a batch must begin a new segment if the active one has this size and these entries.

        The time limit (`segment.ms`) compares timestamps of batches or, if the first batch of the segment
        has none, the present time with the time of creation. Source: Kafka's `LogSegment.shouldRoll`.
        """
        if last_offset > self._max_offset:
            return True
        if not segment_bytes:
            return False
        return (
            segment_bytes + batch_bytes > self._config.segment_bytes
            or index_entries >= self._max_index_entries
            or (timestamp if self._active.first_timestamp >= 0 else now_ms) > self._roll_after_ms
        )

    def _set_roll_limits(self) -> None:
        segment, config = self._active, self._config
        first_ms = segment.first_timestamp if segment.first_timestamp >= 0 else segment.created_ms
        self._roll_after_ms = first_ms + config.segment_ms - self._jitter_ms(segment)
        self._max_offset = segment.base_offset + MAX_RELATIVE_OFFSET

    def _jitter_ms(self, segment: Segment) -> int:
        """Returns a delay that spreads the rolls of partitions; it is constant for a segment."""
        limit_ms = self._config.segment_jitter_ms
        return zlib.crc32(segment.path.encode()) % limit_ms if limit_ms > 0 else 0

    def _begin(self, segment: Segment, timestamp: int) -> None:
        """Notes the greatest timestamp of the first batch of a segment."""
        segment.first_timestamp = timestamp
        self._set_roll_limits()

    def _check_fits(self, size: int) -> None:
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"The batch of {size} bytes exceeds segment.bytes, {self._config.segment_bytes}",
            )

    def roll(self, base_offset: int, now_ms: WallMs) -> None:
        """Begins a new segment at `base_offset`, at or above the log end. It replaces an empty one."""
        previous = self._active
        segment = Segment(self.directory, base_offset, self.open_segments, created_ms=now_ms)
        try:
            self.finish()
            segment.create_files()
            self.checkpoint.add(
                (base_offset,), instead_of=() if previous.size_bytes else (previous.base_offset,)
            )
        except OSError as error:
            raise LogStorageError(f"{segment.path} cannot be created: {error}") from error
        if previous.size_bytes:
            self._segments = (*self._segments, segment)
        else:
            previous.forget()
            previous.remove_files()
            self._segments = (*self._segments[:-1], segment)
        self._active = segment
        self._set_roll_limits()

    def finish(self) -> bool:
        """Writes what the active segment has only in memory. Raises OSError.

        Returns True if its time index got another entry.
        """
        self._cut_failed_append()
        return self._active.finish()

    # -- read

    def read(
        self, fetch_offset: int, max_bytes: int, upper_offset: int, *, at_least_one_batch: bool = True
    ) -> FileRange | None:
        """Returns whole batches of one segment, from the one that contains `fetch_offset`.

        All are below `upper_offset`. They have at most `max_bytes`, but at least one batch is returned if
        `at_least_one_batch`. Returns None if there are none. The caller releases the range. Raises KafkaError
        OFFSET_OUT_OF_RANGE if the offset is not in the log.
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
                cut = end_at_limit(place, position + max_bytes, end, at_least_one_batch=at_least_one_batch)
                if cut is None:
                    return None
                end, next_offset, slot = cut
            if end <= position:
                return None
            if segment.fd == NOT_OPEN:
                segment.open_file()
        except FileNotFoundError as error:
            raise self._out_of_range(fetch_offset) from error  # retention has just removed it
        except (OSError, TornLogError) as error:
            raise LogStorageError(
                f"{self.directory.path}: reading offset {fetch_offset} failed: {error}"
            ) from error
        segment.recently_used = True
        self._remember(next_offset, BatchPlace(segment, end, slot))
        return FileRange(segment, position, end - position, next_offset)

    def remember_place(self, offset: int, segment: Segment, position: int) -> None:
        """Notes that a reader continues at `offset`, with the batch at `position`."""
        self._remember(offset, BatchPlace(segment, position, 0))

    def _find(self, fetch_offset: int) -> BatchPlace | None:
        """Finds the batch by binary search over the segments, then in the segment. Skips emptied ones."""
        segments = self._segments
        at = segment_index(segments, fetch_offset)
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
            f"offset {offset}: the log has {self.log_start_offset} to {self.log_end_offset}",
        )

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions with records in the range, in the order of their markers.

        A few of them may have no record in the range.
        """
        search = AbortedSearch(from_offset, upper_offset)
        self._search_aborted(search)
        return search.found

    def first_aborted(
        self, from_offset: int, upper_offset: int, most: int
    ) -> tuple[list[AbortedTransaction], int]:
        """Returns at most `most` of the aborted transactions with records in the range, and the offset up to
        which these are all: `upper_offset`, or a lower one at which another transaction begins.
        """
        search = AbortedSearch(from_offset, upper_offset, most)
        self._search_aborted(search)
        return search.found, search.upper_offset

    def _search_aborted(self, search: AbortedSearch) -> None:
        segments = self._segments
        at = segment_index(segments, search.from_offset)
        try:
            for segment in segments[at:]:
                if segment.transaction_index.collect(search):
                    break
        except OSError as error:
            raise LogStorageError(
                f"{self.directory.path}: the transaction index cannot be read: {error}"
            ) from error
        search.end()

    def aborted_across(self, offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions with records below `offset` and the marker at or above it.

        `offset` is the base offset of a segment.
        """
        return [found for found in self.aborted_transactions(offset, offset) if found.last_offset >= offset]

    # -- lookup by time

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """Returns the first record at or after `timestamp` (ms), None if there is none. Reads the disk."""
        return self._looked_up(
            lambda: time_lookup.first_at_or_after(self._segments, timestamp, self.log_start_offset)
        )

    def batch_timestamp(self, offset: int) -> TimestampedOffset | None:
        """Returns the last offset and the greatest timestamp of the first batch that ends at or behind
        `offset`, None if there is none. Reads the disk.
        """
        return self._looked_up(lambda: time_lookup.of_offset(self._segments, offset))

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """Returns the first record of the greatest timestamp (KIP-734), None in an empty log."""
        return self._looked_up(lambda: time_lookup.of_max_timestamp(self._segments))

    def _looked_up(self, lookup: Callable[[], TimestampedOffset | None]) -> TimestampedOffset | None:
        try:
            for _ in range(LOOKUP_ATTEMPTS - 1):
                with suppress(FileNotFoundError):  # a segment was removed: look in the present ones
                    return lookup()
            return lookup()
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{self.directory.path}: lookup by time failed: {error}") from error

    # -- the segments, for `PartitionLog`

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first; the last is the active one."""
        return self._segments

    def set_segments(self, segments: tuple[Segment, ...]) -> None:
        """Makes these the segments of the log, after opening or truncation."""
        self._places.clear()
        self._needs_cut = False
        self._segments, self._active = segments, segments[-1]
        self.log_end_offset = self._active.next_offset
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self._set_roll_limits()

    def remove_oldest(self, count: int) -> tuple[Segment, ...]:
        """Removes that many segments, not the active one, from the log. Returns them; their files remain."""
        removed, self._segments = self._segments[:count], self._segments[count:]
        self._places.clear()
        for segment in removed:
            self.size_bytes -= segment.size_bytes
            segment.forget()
        return removed

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> bool:
        """Replaces segments by their cleaned segment. The files of the old ones remain.

        Returns False if they are no longer segments of the log.
        """
        first = next((at for at, segment in enumerate(self._segments) if segment is old[0]), None)
        if first is None or self._segments[first : first + len(old)] != tuple(old) or old[-1] is self._active:
            return False
        self._segments = (*self._segments[:first], new, *self._segments[first + len(old) :])
        self._places.clear()
        self.size_bytes += new.size_bytes - sum(segment.size_bytes for segment in old)
        for segment in old:
            segment.forget()
        return True

    def move_to(self, open_segments: OpenSegments) -> None:
        """Has `open_segments` count the open segments of this log."""
        self.open_segments = open_segments
        for segment in self._segments:
            segment.move_to(open_segments)

    def forget_files(self) -> None:
        """Closes all files as soon as no range refers to them, because the directory is deleted."""
        self._places.clear()
        for segment in self._segments:
            segment.forget()

    def close_files(self) -> None:
        """Closes the files and writes nothing."""
        for segment in self._segments:
            segment.close_files()
