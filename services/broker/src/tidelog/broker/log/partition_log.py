"""The log of one partition and all that follows from it: retention, truncation, durability, recovery.

Threads: everything belongs to the event loop, except what says otherwise: `flush`, `offset_for_timestamp`,
`max_timestamp_offset` and `remove_deleted_files` may run in another thread at any time; `open`, `close`,
`truncate_*` and `mark_deleted` may, if nothing else uses the log meanwhile. Producer state and leader
epochs are the partition core's: the log rebuilds them when opened and writes them to disk (a snapshot at
each roll), but does not take appended batches into them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from time import monotonic
from typing import Final

from tidelog.broker.log import recovery, retention
from tidelog.broker.log.checkpoint_file import write_atomically
from tidelog.broker.log.errors import LogStorageError, TornLogError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.open_segments import OpenSegments
from tidelog.broker.log.partition_directory import (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    PartitionDirectory,
    sync_directory,
    sync_file,
)
from tidelog.broker.log.segment import Segment
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.partition.leader_epochs import LeaderEpochs
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.runtime.request_metrics import Durations

NEVER_CLEANED: Final = -1

_BASE_OFFSET = attrgetter("base_offset")


class PartitionLog(SegmentedLog):
    """Made by `open`. `recovery_point`: everything below it is known to be on disk (fsync).

    `cut_at_opening` says where and why recovery cut the log, None if it was sound; `was_damaged`, whether
    that was more than an end that was still being written. `clean_offset`: where the part that was never
    cleaned begins. `is_swapping`: a cleaned segment's files are getting their names.
    """

    __slots__ = (
        "_cuts",
        "_deleted",
        "_is_name_durable",
        "clean_offset",
        "cut_at_opening",
        "flush_times",
        "is_swapping",
        "last_flush_ms",
        "leader_epochs",
        "producer_state",
        "recovery_point",
        "was_damaged",
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
        super().__init__(
            directory, config, segments, open_segments=open_segments, log_start_offset=log_start_offset
        )
        self.producer_state = producer_state
        self.leader_epochs = leader_epochs
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self.last_flush_ms = now_ms
        self._cuts = 0  # truncations so far
        self._is_name_durable = False  # the directory's own, in the directory above
        self.cut_at_opening: str | None = None
        self.was_damaged = False
        self.clean_offset = NEVER_CLEANED
        self.is_swapping = False
        self.flush_times: Durations | None = None
        self._deleted: list[
            tuple[int, Segment]
        ] = []  # (time of deletion, segment) whose files are still there

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
        epochs_before = leader_epochs.encode()
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
            if loaded.cut is not None:
                log.cut_at_opening, log.was_damaged = loaded.cut
            if not len(leader_epochs) and log.log_end_offset > log.log_start_offset:
                recovery.rebuild_leader_epochs(log.segments, leader_epochs)
            leader_epochs.truncate_from_end(log.log_end_offset)
            leader_epochs.truncate_from_start(log.log_start_offset)
            if leader_epochs.encode() != epochs_before:
                log.persist_leader_epochs()
            recovery.rebuild_producer_state(
                place, log.segments, producer_state, log.log_end_offset, now_ms, loaded.unindexed
            )
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
            self.persist_leader_epochs()
        return True

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        """Retention: drop from the log what is below its start, over `retention.bytes` or older than
        `retention.ms`, oldest first, never at or above the high watermark. Returns how many segments went;
        `remove_deleted_files` frees their space later.
        """
        if self.is_swapping:
            return 0
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

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> bool:
        """Put a cleaned segment in the place of its sources, which keep their files; False if they are no
        longer those of the log. `segments_replaced` has them removed once they have other names.
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

    def segments_replaced(self, old: Sequence[Segment], now_ms: int) -> None:
        """Their files have Kafka's suffix for what is to be removed."""
        self._deleted += [(now_ms, segment) for segment in old]

    @property
    def cut_count(self) -> int:
        """Truncations so far."""
        return self._cuts

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
                del self._deleted[0]
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
        epochs follow; an epoch that has no batch goes in any case.
        """
        if offset >= self.log_end_offset:
            self._trim_leader_epochs()
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
            self.leader_epochs.clear()
            self._end_changed(offset, now_ms)
            self.persist_leader_epochs()

    @contextmanager
    def _to_itself(self, what: str) -> Iterator[None]:
        """While another thread than the loop's may work on the segments, nothing on the loop closes their
        files.
        """
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
        """Segments whose names may be needed again at once, and so those that wait for removal under their
        old names.
        """
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
        with self.directory.lock:
            self._cuts += 1
            self.recovery_point = min(self.recovery_point, offset)
        self.clean_offset = min(self.clean_offset, offset)
        self._trim_leader_epochs()
        recovery.remove_snapshots_above(self.directory, offset)
        if not self.producer_state.truncate_from(offset):
            recovery.rebuild_producer_state(
                self.directory, self._segments, self.producer_state, offset, now_ms
            )

    # -- durability

    def _sync_small_files(self) -> None:
        for name in (LEADER_EPOCHS_FILE, PARTITION_METADATA_FILE):
            with suppress(FileNotFoundError):
                sync_file(self.directory.named(name))
        self.directory.sync()
        if not self._is_name_durable:
            sync_directory(self.directory.named("..").resolve())
            self._is_name_durable = True

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
        cuts = self._cuts
        up_to = self.log_end_offset if up_to_offset is None else up_to_offset
        segments, recovery_point = self._segments, self.recovery_point  # after `up_to`: they reach that far
        if up_to > recovery_point:
            began_s = monotonic()
            try:
                for segment in segments:
                    if segment.next_offset > recovery_point and segment.base_offset < up_to:
                        segment.sync()
                self._sync_small_files()
            except OSError as error:
                raise LogStorageError(f"{self.directory.path}: flush failed: {error}") from error
            if self.flush_times is not None:
                self.flush_times.took(monotonic() - began_s)
            with self.directory.lock:
                if self._cuts == cuts:  # else what stands there now may be other records, not on disk yet
                    self.recovery_point = max(self.recovery_point, min(up_to, self.log_end_offset))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def persist_leader_epochs(self, *, syncs: bool = False) -> None:
        """Write `leader-epoch-checkpoint`: before a batch of a new epoch counts.

        `flush` makes it durable, before the recovery point passes the batches of that epoch. Until then
        recovery takes their epochs from their headers, and an epoch without batches is dropped at a restart
        anyway, so that the event loop need not wait for an fsync here. Any thread.
        """
        try:
            path = self.directory.named(LEADER_EPOCHS_FILE)
            with self.directory.lock:  # of two threads the later writes the newer entries
                write_atomically(path, self.leader_epochs.encode(), syncs=syncs)
        except OSError as error:
            raise LogStorageError(
                f"{self.directory.path}: leader epochs can't be written: {error}"
            ) from error

    def _before_roll(self) -> None:
        self.write_producer_snapshot()

    def write_producer_snapshot(self) -> None:
        """The producer state as of the log end, in the `.snapshot` file named by it. Raises OSError."""
        path = self.directory.file(self.log_end_offset, SNAPSHOT_SUFFIX)
        if not os.path.exists(
            path
        ):  # else nothing was appended since: truncation removes those beyond its offset
            write_atomically(path, self.producer_state.snapshot(), syncs=False)

    def close(self) -> None:
        """Everything to disk, so that the next start needs no recovery if the directory is marked clean. The
        log is unusable then.
        """
        try:
            self._cut_failed_append()
            has_new_entry = self._active.finish()
            self.write_producer_snapshot()
            if has_new_entry and self.recovery_point == self.log_end_offset:
                self._active.sync()
            self.flush()
        except OSError as error:
            raise LogStorageError(f"{self.directory.path} can't be closed: {error}") from error
        finally:
            self.close_files()

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
