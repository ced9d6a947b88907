"""The log of one partition: append at its end, read anywhere, cut at both ends.

Path of an append: roll if the active segment is full or old -> `pwrite` -> index entry each
`index.interval.bytes` -> log end offset. Path of a read: place of the batch (remembered from the last read
that ended there, else index and a short walk) -> `FileRange`.

Threads: everything belongs to the event loop, except what says otherwise: `flush`, `offset_for_timestamp`,
`max_timestamp_offset` and `remove_deleted_files` may run in another thread at any time; `open`, `close`,
`truncate_*` and `mark_deleted` may, if nothing else uses the log meanwhile. Producer state and leader
epochs are the partition core's: the log rebuilds them when opened and writes them to disk (a snapshot at
each roll), but does not take appended batches into them.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

from tidelog.broker.log import recovery, retention, time_lookup
from tidelog.broker.log.checkpoint_file import write_atomically
from tidelog.broker.log.errors import LogStorageError, TornLogError
from tidelog.broker.log.file_range import FileRange
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.open_segments import OpenSegments
from tidelog.broker.log.partition_directory import (
    LEADER_EPOCHS_FILE,
    SNAPSHOT_SUFFIX,
    PartitionDirectory,
)
from tidelog.broker.log.segment import MAX_RELATIVE_OFFSET, NOT_OPEN, Segment
from tidelog.broker.log.segment_lookup import BatchPlace, batch_with, cut_at, end_before_offset
from tidelog.broker.log.time_index import TimeIndex
from tidelog.broker.log.time_lookup import TimestampedOffset
from tidelog.broker.partition.leader_epochs import LeaderEpochs
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import BatchHeader

PLACES_REMEMBERED: Final = 64
"""Where the next read of that many sequential readers begins, per partition."""

_BASE_OFFSET = attrgetter("base_offset")
_ANY_TIMESTAMP_MAY_ROLL: Final = -2


class PartitionLog:
    """Offsets, sizes and config may be read at any time. Made by `open`.

    Raises LogStorageError (KAFKA_STORAGE_ERROR) where the disk refuses; the log is then as it was before
    the call.
    """

    __slots__ = (
        "_active",
        "_config",
        "_deleted",
        "_max_index_entries",
        "_needs_cut",
        "_places",
        "_roll_after_timestamp",
        "_segments",
        "cut_at_opening",
        "directory",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "open_segments",
        "producer_state",
        "recovery_point",
        "size_bytes",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        config: LogConfig,
        segments: list[Segment],
        *,
        producer_state: ProducerState,
        leader_epochs: LeaderEpochs,
        open_segments: OpenSegments,
        recovery_point: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        self.directory = directory
        self._segments = tuple(segments)
        self._active = segments[-1]
        self.open_segments = open_segments
        self.producer_state = producer_state
        self.leader_epochs = leader_epochs
        self.log_end_offset = self._active.next_offset
        self.log_start_offset = log_start_offset
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.last_flush_ms = now_ms
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self._places: dict[int, BatchPlace] = {}  # next fetch offset -> where it begins
        self._deleted: deque[tuple[int, Segment]] = (
            deque()
        )  # (time of deletion, segment) whose files are still there
        self._needs_cut = False
        self.cut_at_opening: str | None = None
        self.config = config

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig,
        *,
        now_ms: int,
        producer_state: ProducerState,
        leader_epochs: LeaderEpochs,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        open_segments: OpenSegments | None = None,
    ) -> PartitionLog:
        """The log in `directory` (made if absent), recovered: after anything but a clean shutdown all batches
        from the recovery point on are checked, and the log is cut at the first that is not sound. Fills
        `producer_state`, trims `leader_epochs`.
        """
        place = PartitionDirectory(os.fspath(directory))
        try:
            os.makedirs(place.path, exist_ok=True)
            loaded = recovery.load_segments(
                place,
                config,
                leader_epochs,
                recovery_point=max(0, recovery_point),
                log_start_offset=log_start_offset,
                clean_shutdown=clean_shutdown,
                now_ms=now_ms,
            )
            log = cls(
                place,
                config,
                loaded.segments,
                producer_state=producer_state,
                leader_epochs=leader_epochs,
                open_segments=loaded.segments[0].open_segments,
                recovery_point=recovery_point,
                log_start_offset=max(log_start_offset, loaded.segments[0].base_offset),
                now_ms=now_ms,
            )
            log.cut_at_opening = loaded.cut
            log._trim_leader_epochs()
            recovery.rebuild_producer_state(place, log.segments, producer_state, log.log_end_offset, now_ms)
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{place.path} can't be opened: {error}") from error
        log.close_files()
        if open_segments is not None:
            log.open_segments = open_segments
            for segment in log.segments:
                segment.move_to(open_segments)
        return log

    def _trim_leader_epochs(self) -> None:
        epochs = self.leader_epochs
        if epochs.truncate_from_end(self.log_end_offset) | epochs.truncate_from_start(self.log_start_offset):
            self.persist_leader_epochs()

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
        segment.recently_used = True
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.offset_of_max_timestamp = last_offset
        if segment.bytes_since_index_entry > config.index_interval_bytes:
            segment.add_index_entries(last_offset, position)
            segment.bytes_since_index_entry = size
        else:
            segment.bytes_since_index_entry += size
        segment.size_bytes = position + size
        self.size_bytes += size
        segment.next_offset = self.log_end_offset = last_offset + 1

    def _segment_for(self, header: BatchHeader, size: int, now_ms: int) -> Segment:
        """The segment the batch goes to, a new one if the active one can't or should not take it."""
        segment, config = self._active, self._config
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes is larger than segment.bytes, {config.segment_bytes}",
            )
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

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        previous = self._active
        segment = Segment(self.directory, base_offset, self.open_segments, created_ms=now_ms)
        try:
            previous.finish()
            self.write_producer_snapshot()
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
            fd = segment.open_file()
            if self._needs_cut:
                os.ftruncate(fd, segment.size_bytes)
                self._needs_cut = False
        except OSError as error:
            raise LogStorageError(f"{segment.path}: {error}") from error

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
            return lookup()
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{self.directory.path}: lookup by time failed: {error}") from error

    # -- removal at the beginning

    def increment_log_start_offset(self, offset: int) -> bool:
        """Records below `offset` are no longer read; whole segments of them go with the next retention. True
        if it moved.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the log end.
        """
        if offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.leader_epochs.truncate_from_start(offset):
            self.persist_leader_epochs(syncs=False)  # read again after a crash, it is trimmed again
        return True

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        """Retention: drop from the log what is below its start, over `retention.bytes` or older than
        `retention.ms`, oldest first, never at or above the high watermark. Returns how many segments went;
        `remove_deleted_files` frees their space later.
        """
        count = retention.segments_to_delete(
            self._segments,
            self._config,
            log_size_bytes=self.size_bytes,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        if not count:
            return 0
        if count == len(self._segments):
            self._roll(self.log_end_offset, now_ms)
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._places.clear()
        for segment in gone:
            self.size_bytes -= segment.size_bytes
            segment.forget()
            self._deleted.append((now_ms, segment))
        self.increment_log_start_offset(max(self.log_start_offset, self._segments[0].base_offset))
        return count

    @property
    def has_deleted_files(self) -> bool:
        return bool(self._deleted)

    def remove_deleted_files(self, now_ms: int) -> int:
        """Unlink what was dropped `file.delete.delay.ms` ago or earlier; how many segments. Any thread, one
        at a time.
        """
        removed = 0
        try:
            while self._deleted and now_ms - self._deleted[0][0] >= self._config.file_delete_delay_ms:
                self._deleted[0][1].remove_files()
                self._deleted.popleft()
                removed += 1
            if removed:
                recovery.remove_snapshots_below(self.directory, self._segments[0].base_offset)
        except OSError as error:
            raise LogStorageError(
                f"{self.directory.path}: deleted segments can't be removed: {error}"
            ) from error
        return removed

    # -- truncation at the end

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Cut off all batches with a record at or above `offset`; False if there are none. Producer state and
        epochs follow.
        """
        if offset >= self.log_end_offset:
            return False
        if offset <= self._segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        with self._to_itself(f"truncation to {offset}"):
            count = max(1, bisect_right(self._segments, offset - 1, key=_BASE_OFFSET))
            self._drop(self._segments[count:], now_ms)
            self._set_segments(self._segments[:count])
            recovery.truncate_segment(self._active, offset)
            self._end_changed(self._active.next_offset, now_ms)
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything; the log is empty and goes on at `offset`."""
        with self._to_itself(f"restart at {offset}"):
            self._drop(self._segments, now_ms)
            fresh = Segment(self.directory, offset, self.open_segments, created_ms=now_ms)
            fresh.create_files()
            self._set_segments((fresh,))
            self.log_start_offset = offset
            self._end_changed(offset, now_ms)

    @contextmanager
    def _to_itself(self, what: str) -> Iterator[None]:
        """While another thread than the loop's may work on the segments, nothing on the loop closes their files."""
        shared, self.open_segments = self.open_segments, OpenSegments()
        for segment in self._segments:
            segment.move_to(self.open_segments)
        try:
            yield
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{self.directory.path}: {what} failed: {error}") from error
        finally:
            self.open_segments = shared
            for segment in self._segments:
                segment.move_to(shared)

    def _drop(self, segments: tuple[Segment, ...], now_ms: int) -> None:
        """Segments whose names may be needed again at once, and so those that wait for removal under their old names."""
        for _, segment in self._deleted:
            segment.rename_deleted()
        for segment in segments:
            segment.forget()
            segment.rename_deleted()
            self._deleted.append((now_ms, segment))

    def _set_segments(self, segments: tuple[Segment, ...]) -> None:
        self._places.clear()
        self._needs_cut = False
        self._segments, self._active = segments, segments[-1]
        self._roll_after_timestamp = self._last_timestamp_of(self._active)

    def _end_changed(self, offset: int, now_ms: int) -> None:
        self.log_end_offset = offset
        self.size_bytes = sum(segment.size_bytes for segment in self._segments)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._trim_leader_epochs()
        recovery.remove_snapshots_above(self.directory, offset)
        if not self.producer_state.truncate_from(offset):
            recovery.rebuild_producer_state(
                self.directory, self._segments, self.producer_state, offset, now_ms
            )

    # -- durability

    @property
    def is_flush_due_by_messages(self) -> bool:
        """`flush.messages` appended since the last flush."""
        return self.log_end_offset - self.recovery_point >= self._config.flush_messages

    def is_flush_due(self, now_ms: int) -> bool:
        """By `flush.messages`, `flush.ms`, or because a segment was rolled since."""
        recovery_point, end = self.recovery_point, self.log_end_offset
        return recovery_point < end and (
            recovery_point < self._active.base_offset
            or now_ms - self.last_flush_ms >= self._config.flush_ms
            or end - recovery_point >= self._config.flush_messages
        )

    def flush(self, up_to_offset: int | None = None, *, now_ms: int | None = None) -> None:
        """fsync all that lies below `up_to_offset` (default: the log end) and the directory, and move the
        recovery point there.

        Any thread, one at a time.
        """
        up_to = self.log_end_offset if up_to_offset is None else up_to_offset
        segments, recovery_point = self._segments, self.recovery_point  # after `up_to`: they reach that far
        if up_to > recovery_point:
            try:
                for segment in segments:
                    if segment.next_offset > recovery_point and segment.base_offset < up_to:
                        segment.sync()
                self.directory.sync()
            except OSError as error:
                raise LogStorageError(f"{self.directory.path}: flush failed: {error}") from error
            # A truncation meanwhile has moved it down and is right.
            self.recovery_point = max(self.recovery_point, min(up_to, self.log_end_offset))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def persist_leader_epochs(self, *, syncs: bool = True) -> None:
        """Write and fsync `leader-epoch-checkpoint`: before a batch of a new epoch counts."""
        try:
            path = self.directory.named(LEADER_EPOCHS_FILE)
            write_atomically(path, self.leader_epochs.encode(), syncs=syncs)
        except OSError as error:
            raise LogStorageError(
                f"{self.directory.path}: leader epochs can't be written: {error}"
            ) from error

    def write_producer_snapshot(self) -> None:
        """The producer state as of the log end, in the `.snapshot` file named by it. Raises OSError."""
        path = self.directory.file(self.log_end_offset, SNAPSHOT_SUFFIX)
        write_atomically(path, self.producer_state.snapshot(), syncs=False)

    def close(self) -> None:
        """Everything to disk, so that the next start needs no recovery if the directory is marked clean. The
        log is unusable then.
        """
        try:
            self._active.finish()
            self.write_producer_snapshot()
            self.flush()
            self._active.sync()  # even if it was flushed before: its time index may just have got its last entry
            self.directory.sync()
        except OSError as error:
            raise LogStorageError(f"{self.directory.path} can't be closed: {error}") from error
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Free the descriptors and write nothing."""
        for segment in self._segments:
            segment.close_files()

    def mark_deleted(self, new_path: str) -> None:
        """Move the directory to `new_path` (see `renamed_directory_name`), from where it can be removed at
        leisure.

        File ranges being sent stay readable.
        """
        try:
            os.rename(self.directory.path, new_path)
        except OSError as error:
            raise LogStorageError(f"{self.directory.path} can't be renamed: {error}") from error
        self.directory.path = new_path
        self._places.clear()
        self._deleted.clear()
        for segment in self._segments:
            segment.forget()
