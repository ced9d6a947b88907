"""The life of a partition's log on disk: opening, retention, truncation, flushes, closing.

A `PartitionLog` contains the log (`SegmentedLog`), which appends and reads. It changes neither leader epochs
nor producer state: it persists what the partition core gives it, and reports what happened as values
(`OpenedLog`, `Truncated`, `LogRestarted`) that the core applies on the event loop.

Threads: any thread may call `flush`, `persist_leader_epochs` and `remove_deleted_files` at any time, and
`open`, `close`, `truncate_to`, `restart_at` and `mark_deleted` if nothing else uses the log meanwhile.
Everything else belongs to the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from tidelog.broker.log import recovery
from tidelog.broker.log.directory_files import (
    TOPIC_SETTINGS_FILE,
    LogStorageError,
    PartitionDirectory,
    SegmentsCheckpoint,
    keep_topic_settings,
    sync_directory,
    sync_file,
    write_atomically,
)
from tidelog.broker.log.log_config import LogConfig, segments_to_delete
from tidelog.broker.log.recovery import LostRecordsError
from tidelog.broker.log.segment import OpenSegments, Segment, segment_index
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.partition.events import LogRestarted, Truncated
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.kernel.instants import WallMs, is_over
from tidelog.log_format.batches import TornLogError
from tidelog.log_format.directory import (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    SEGMENTS_CHECKPOINT_FILE,
    SNAPSHOT_SUFFIX,
)
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.metrics.telemetry import Durations
from tidelog.model.errors import ErrorCode, KafkaError

NEVER_CLEANED: Final = -1
_SMALL_FILES: Final = (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    SEGMENTS_CHECKPOINT_FILE,
    TOPIC_SETTINGS_FILE,
)


class PartitionLog:
    """The storage of a log. `open` creates it.

    Everything below `recovery_point` is known to be on disk (fsync). `cut_at_opening` says where and why
    recovery cut the log, None if it was sound; `was_damaged`, whether that was more than an end that was
    still being written. The part at and above `clean_offset` was never compacted. While `is_swapping`, the
    files of a cleaned segment are being renamed. `leader_epoch_checkpoint` is the text that
    `persist_leader_epochs` writes; the event loop sets it.
    """

    __slots__ = (
        "_deleted",
        "_has_unreported_cut",
        "_is_name_durable",
        "clean_offset",
        "cut_at_opening",
        "cut_count",
        "flush_times",
        "is_swapping",
        "last_flush_ms",
        "leader_epoch_checkpoint",
        "log",
        "recovery_point",
        "topic_settings",
        "was_damaged",
    )

    def __init__(
        self, log: SegmentedLog, leader_epoch_checkpoint: bytes, *, recovery_point: int, now_ms: WallMs
    ) -> None:
        self.log = log
        self.leader_epoch_checkpoint = leader_epoch_checkpoint
        self.recovery_point = min(recovery_point, log.log_end_offset)
        self.last_flush_ms = now_ms
        self.cut_count = 0
        """The number of truncations so far."""
        self.cut_at_opening: str | None = None
        self.was_damaged = False
        self.topic_settings: Mapping[str, str] | None = None
        """The topic's overrides in the copy of its settings; None if this run has not written it."""
        self.clean_offset = NEVER_CLEANED
        self.is_swapping = False
        self.flush_times: Durations | None = None
        self._has_unreported_cut = False  # a truncation failed after it had removed batches
        self._is_name_durable = False  # whether the directory above was flushed
        # (time of deletion, segment): their files still exist.
        self._deleted: list[tuple[WallMs, Segment]] = []

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        config: LogConfig,
        *,
        now_ms: WallMs,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        clean_shutdown: bool = False,
        is_suspect: bool = False,
        is_only_replica: bool = False,
        open_segments: OpenSegments | None = None,
    ) -> OpenedLog:
        """Opens the log in `directory`, which is created if necessary, and recovers it.

        After anything but a clean shutdown, recovery checks all batches from the recovery point, and cuts
        the log at the first one that is not sound. `is_suspect` says that the machine may have crashed and
        lost what was not flushed. `is_only_replica` lets the log begin at the first segment that exists.
        Raises LogStorageError.
        """
        place = PartitionDirectory(os.fspath(directory))
        try:
            os.makedirs(place.path, exist_ok=True)
            leader_epochs = recovery.read_leader_epochs(place)
            epochs_before = leader_epochs.encode()
            had_epochs = len(leader_epochs) > 0
            checkpoint = SegmentsCheckpoint.read(place)
            loaded = recovery.load_segments(
                place,
                config,
                leader_epochs,
                checkpoint,
                recovery_point=max(0, recovery_point),
                log_start_offset=log_start_offset,
                high_watermark=high_watermark,
                clean_shutdown=clean_shutdown,
                is_suspect=is_suspect,
                is_only_replica=is_only_replica,
                now_ms=now_ms,
            )
            log = SegmentedLog(
                place,
                config,
                loaded.segments,
                checkpoint,
                open_segments=loaded.segments[0].open_segments,
                log_start_offset=max(log_start_offset, loaded.segments[0].base_offset),
            )
            if not had_epochs and log.log_end_offset > log.log_start_offset:
                # Recovery has noted only the batches of the segments that it read.
                leader_epochs = LeaderEpochs()
                recovery.rebuild_leader_epochs(log.segments, leader_epochs)
            _keep_within(leader_epochs, log)
            storage = cls(log, leader_epochs.encode(), recovery_point=recovery_point, now_ms=now_ms)
            if loaded.cut is not None:
                storage.cut_at_opening, storage.was_damaged = loaded.cut
            if storage.leader_epoch_checkpoint != epochs_before:
                storage.persist_leader_epochs()
            producers = recovery.rebuild_producers(
                place, log.segments, log.log_end_offset, now_ms, loaded.unindexed
            )
        except (OSError, TornLogError, LostRecordsError) as error:
            raise LogStorageError(f"{place.path} cannot be opened: {error}") from error
        log.close_files()
        if open_segments is not None:
            log.move_to(open_segments)
        return OpenedLog(storage, producers, leader_epochs)

    # -- removal at the beginning

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset up. Returns True if it moved.

        Records below it are no longer read; the next retention removes segments that have only such records.
        Raises KafkaError OFFSET_OUT_OF_RANGE above the log end.
        """
        log = self.log
        if offset > log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}: the log ends at {log.log_end_offset}",
            )
        if offset <= log.log_start_offset:
            return False
        log.log_start_offset = offset
        return True

    def delete_old_segments(
        self, now_ms: WallMs, high_watermark: int, producer_snapshot: Callable[[], bytes]
    ) -> int:
        """Applies retention. Returns the number of segments that it removes from the log.

        It removes segments below the log start, over `log_config.bytes` or older than `log_config.ms`, the
        oldest first, and none at or above the high watermark. `remove_deleted_files` frees the space later.
        If all segments go, the log rolls first, which needs the snapshot of the producers at the log end.
        """
        if self.is_swapping:
            return 0
        log = self.log
        count = segments_to_delete(
            log.segments,
            log.config,
            log_size_bytes=log.size_bytes,
            log_start_offset=log.log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        if not count:
            return 0
        if count == len(log.segments):
            self.roll(log.log_end_offset, now_ms, producer_snapshot())
        self._deleted += [(now_ms, segment) for segment in log.remove_oldest(count)]
        self.increment_log_start_offset(max(log.log_start_offset, log.segments[0].base_offset))
        return count

    def segments_replaced(self, old: Sequence[Segment], now_ms: WallMs) -> None:
        """Schedules the removal of segments that a cleaned one replaced; their files are renamed already."""
        self._deleted += [(now_ms, segment) for segment in old]

    @property
    def has_deleted_files(self) -> bool:
        """Whether `remove_deleted_files` will have work."""
        return bool(self._deleted)

    def remove_deleted_files(self, now_ms: WallMs) -> int:
        """Unlinks segments that were removed `file.delete.delay.ms` ago or earlier. Returns how many.

        Only one thread at a time may call it.
        """
        log = self.log
        delay_ms = log.config.file_delete_delay_ms
        # The event loop can add others meanwhile, which are still in the list of segments.
        over = takewhile(lambda entry: is_over(entry[0], delay_ms, now_ms), list(self._deleted))
        due = [segment for _, segment in over]
        try:
            log.checkpoint.remove(segment.base_offset for segment in due if not segment.is_renamed)
            for segment in due:
                segment.remove_files()
                del self._deleted[0]
            if due:
                recovery.remove_snapshots_below(log.directory, log.segments[0].base_offset)
        except OSError as error:
            raise LogStorageError(
                f"{log.directory.path}: deleted segments cannot be removed: {error}"
            ) from error
        return len(due)

    # -- rolling

    def roll(self, base_offset: int, now_ms: WallMs, producer_snapshot: bytes) -> None:
        """Begins a new segment at `base_offset`, at or above the log end.

        `producer_snapshot` describes the producers as of the log end, and is written beside the segment.
        """
        try:
            self.write_producer_snapshot(producer_snapshot)
        except OSError as error:
            raise LogStorageError(
                f"{self.log.directory.path}: the producer snapshot cannot be written: {error}"
            ) from error
        self.log.roll(base_offset, now_ms)

    def write_producer_snapshot(self, snapshot: bytes) -> None:
        """Writes the state of the producers at the log end to the file named by it. Raises OSError."""
        path = self.log.directory.file(self.log.log_end_offset, SNAPSHOT_SUFFIX)
        # If the file exists, nothing was appended since: truncation removes snapshots above its offset.
        if not os.path.exists(path):
            write_atomically(path, snapshot, syncs=False)

    # -- truncation at the end

    def truncate_to(
        self, offset: int, leader_epochs: LeaderEpochs, now_ms: WallMs
    ) -> Truncated | LogRestarted:
        """Removes all batches with a record at or above `offset`.

        `leader_epochs` is a copy of the core's. Those that still have batches are written to the checkpoint,
        also if no batch was removed. The result has the producer state that the remaining batches show.
        """
        log = self.log
        is_cut = offset < log.log_end_offset
        if is_cut and offset < log.segments[0].base_offset:
            return self.restart_at(offset, now_ms)
        with self._exclusively(f"truncation to {offset}"):
            if is_cut:
                self._has_unreported_cut = True
                if offset == log.segments[0].base_offset:
                    self._empty_at(offset, now_ms)
                else:
                    count = segment_index(log.segments, offset - 1) + 1
                    self._delete(log.segments[count:], now_ms)
                    log.set_segments(log.segments[:count])
                    recovery.truncate_segment(log.segments[-1], offset)
                    log.set_segments(log.segments)
                self._cut_to(log.log_end_offset)
            if _keep_within(leader_epochs, log):
                self.leader_epoch_checkpoint = leader_epochs.encode()
                self.persist_leader_epochs()
            if not self._has_unreported_cut:
                return Truncated(log.log_start_offset, log.log_end_offset)
            producers = recovery.rebuild_producers(log.directory, log.segments, log.log_end_offset, now_ms)
        self._has_unreported_cut = False
        return Truncated(log.log_start_offset, log.log_end_offset, producers)

    def restart_at(self, offset: int, now_ms: WallMs) -> LogRestarted:
        """Removes all batches, producer snapshots and leader epochs; the empty log begins at `offset`."""
        log = self.log
        with self._exclusively(f"restart at {offset}"):
            self._has_unreported_cut = True
            self._empty_at(offset, now_ms)
            log.log_start_offset = offset
            self._cut_to(offset)
            self.leader_epoch_checkpoint = LeaderEpochs().encode()
            self.persist_leader_epochs()
            recovery.remove_snapshots(log.directory)
        self._has_unreported_cut = False
        return LogRestarted(offset)

    def _empty_at(self, offset: int, now_ms: WallMs) -> None:
        log = self.log
        self._delete(log.segments, now_ms)
        segment = Segment(log.directory, offset, log.open_segments, created_ms=now_ms)
        segment.create_files()
        log.checkpoint.add((offset,))
        log.set_segments((segment,))

    @contextmanager
    def _exclusively(self, what: str) -> Iterator[None]:
        """Keeps the event loop from closing the segments' files while another thread works on them."""
        log = self.log
        shared = log.open_segments
        log.move_to(OpenSegments())
        try:
            yield
        except (OSError, TornLogError) as error:
            raise LogStorageError(f"{log.directory.path}: {what} failed: {error}") from error
        finally:
            log.move_to(shared)

    def _delete(self, segments: Sequence[Segment], now_ms: WallMs) -> None:
        """Schedules the removal of segments and renames their files, whose names may be needed at once."""
        removed = [*(segment for _, segment in self._deleted if not segment.is_renamed), *segments]
        self.log.checkpoint.remove(segment.base_offset for segment in removed)
        for _, segment in self._deleted:
            segment.rename_deleted()
        for segment in segments:
            segment.forget()
            segment.rename_deleted()
            self._deleted.append((now_ms, segment))

    def _cut_to(self, offset: int) -> None:
        log = self.log
        log.log_start_offset = min(log.log_start_offset, offset)
        with log.directory.lock:
            self.cut_count += 1
            self.recovery_point = min(self.recovery_point, offset)
        self.clean_offset = min(self.clean_offset, offset)

    # -- durability

    def is_flush_due(self, now_ms: WallMs) -> bool:
        """Returns whether a flush is due by `flush.ms` or after a roll. The partition core decides about
        `flush.messages`.
        """
        recovery_point, end = self.recovery_point, self.log.log_end_offset
        return recovery_point < end and (
            recovery_point < self.log.segments[-1].base_offset
            or is_over(self.last_flush_ms, self.log.config.flush_ms, now_ms)
        )

    def flush(self, up_to_offset: int | None = None, *, now_ms: WallMs | None = None) -> None:
        """Flushes everything below `up_to_offset` (default: the log end) and the directory to disk (fsync).

        Moves the recovery point there. Only one thread at a time may call it.
        """
        log = self.log
        cuts = self.cut_count
        up_to = log.log_end_offset if up_to_offset is None else up_to_offset
        segments, recovery_point = log.segments, self.recovery_point  # read after `up_to`: they reach as far
        if up_to > recovery_point:
            began_s = monotonic()
            try:
                for segment in segments:
                    if segment.next_offset > recovery_point and segment.base_offset < up_to:
                        segment.sync()
                self._sync_small_files()
            except OSError as error:
                raise LogStorageError(f"{log.directory.path}: flush failed: {error}") from error
            if self.flush_times is not None:
                self.flush_times.took(monotonic() - began_s)
            with log.directory.lock:
                if self.cut_count == cuts:  # else there may be other records by now, not yet on disk
                    self.recovery_point = max(self.recovery_point, min(up_to, log.log_end_offset))
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def _sync_small_files(self) -> None:
        directory = self.log.directory
        for name in _SMALL_FILES:
            with suppress(FileNotFoundError):
                sync_file(directory.named(name))
        directory.sync()
        if not self._is_name_durable:
            sync_directory(directory.named("..").resolve())
            self._is_name_durable = True

    def persist_leader_epochs(self, *, syncs: bool = False) -> None:
        """Writes `leader_epoch_checkpoint` to its file, as is necessary before a batch of a new epoch counts.

        `flush` makes it durable before the recovery point passes the batches of that epoch. Until then,
        recovery takes their epochs from their headers, and an epoch without batches is removed at a restart
        anyway. So the event loop need not wait for an fsync here.
        """
        directory = self.log.directory
        try:
            with directory.lock:  # of two threads, the later one writes the newer text
                write_atomically(
                    directory.named(LEADER_EPOCHS_FILE), self.leader_epoch_checkpoint, syncs=syncs
                )
        except OSError as error:
            raise LogStorageError(
                f"{directory.path}: the leader epochs cannot be written: {error}"
            ) from error

    def keep_topic_settings(self, overrides: Mapping[str, str]) -> None:
        """Writes the copy of the topic's settings."""
        keep_topic_settings(Path(self.log.directory.path), overrides)
        self.topic_settings = overrides

    def close(self, producer_snapshot: bytes | None = None) -> None:
        """Flushes everything and closes the files. The log is then unusable.

        If the directory is marked clean afterwards, the next start needs no recovery. Without the snapshot
        of the producers at the log end, the next start reads the batches since the last one.
        """
        log = self.log
        try:
            has_new_entry = log.finish()
            if producer_snapshot is not None and not self._has_unreported_cut:
                self.write_producer_snapshot(producer_snapshot)
            if has_new_entry and self.recovery_point == log.log_end_offset:
                log.segments[-1].sync()
            self.flush()
        except OSError as error:
            raise LogStorageError(f"{log.directory.path} cannot be closed: {error}") from error
        finally:
            log.close_files()

    def mark_deleted(self, new_path: str) -> None:
        """Moves the directory to `new_path` (see `renamed_directory_name`), from where it can be removed.

        File ranges that are being sent stay readable.
        """
        directory = self.log.directory
        try:
            os.rename(directory.path, new_path)
        except OSError as error:
            raise LogStorageError(f"{directory.path} cannot be renamed: {error}") from error
        directory.path = new_path
        self._deleted.clear()
        self.log.forget_files()


class OpenedLog(NamedTuple):
    """A log and what its files say about the state that the partition core keeps from now on.

    It is defined after `PartitionLog`, because mypyc reads the types of the fields when it creates the class.
    """

    storage: PartitionLog
    producers: ProducerState
    leader_epochs: LeaderEpochs


def _keep_within(leader_epochs: LeaderEpochs, log: SegmentedLog) -> bool:
    """Removes the epochs that have no batch in the log. Returns True if that changed anything."""
    return leader_epochs.truncate_from_end(log.log_end_offset) | leader_epochs.truncate_from_start(
        log.log_start_offset
    )
