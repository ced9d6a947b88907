"""A data directory: its owner, its partitions, their checkpoints, and the way in which the last run ended.

Functions that access the disk may run in a thread. All but `open` and `close` may run while the event loop
uses the directory, but only one at a time for the same partition.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from tidelog.broker.log.directory_files import (
    LogStorageError,
    keep_broker_settings,
    read_meta_properties,
    read_offsets,
    read_topic_id,
    write_meta_properties,
    write_offsets,
    write_topic_id,
)
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.partition_log import NEVER_CLEANED, OpenedLog, PartitionLog
from tidelog.broker.log.previous_life import (
    DirectoryLock,
    Life,
    has_listed_segments,
    is_log_suspect,
    life_of,
    listed_segments_epoch,
    read_boot_id,
    take_clean_shutdown_marker,
    with_life,
    with_listed_segments,
    write_clean_shutdown_marker,
)
from tidelog.broker.log.segment import OpenSegments
from tidelog.kernel.instants import WallMs, is_over
from tidelog.log_format.directory import (
    CLEANER_OFFSET_CHECKPOINT,
    DELETED_DIRECTORY_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    NOT_OF_BROKERS,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENTS_CHECKPOINT_FILE,
    STRAY_DIRECTORY_SUFFIX,
    CorruptFileError,
    MetaProperties,
    parse_partition_directory_name,
    partition_directory_name,
    renamed_directory_name,
)
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition, topic_id_text

CLOSING_THREADS: Final = 8
"""Closing waits for fsyncs, and a file system can carry out many of them at the same time."""

_log = structlog.get_logger(__name__)


class LogDirectory:
    """A data directory in use. `open` creates the object.

    `was_clean` is True if the last run closed all logs. `previous_broker_epoch` is the broker epoch of that
    run, -1 if it is unknown.
    """

    def __init__(
        self, path: Path, lock: DirectoryLock, meta: MetaProperties, clean_epoch: int | None
    ) -> None:
        self.path = path
        self.meta = meta
        self.is_suspect = is_log_suspect(life_of(meta), clean_epoch, read_boot_id())
        """Whether the ends of logs may be lost, because the last stop was unclean and the machine restarted.
        """
        self.has_untold_damage = False
        """Whether lost records were found on which no controller has acted yet; a clean stop does not change
        that.
        """
        self.was_clean = clean_epoch is not None
        self.previous_broker_epoch = UNKNOWN_EPOCH if clean_epoch is None else clean_epoch
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        self.open_segments = OpenSegments()
        self._lock = lock
        self._recovery_points = _read_or_start_over(path / RECOVERY_POINT_CHECKPOINT)
        self._log_start_offsets = _read_or_start_over(path / LOG_START_OFFSET_CHECKPOINT)
        self._clean_offsets = _read_or_start_over(path / CLEANER_OFFSET_CHECKPOINT)
        self.high_watermarks = _read_or_start_over(path / HIGH_WATERMARK_CHECKPOINT)
        self._on_file: dict[str, Mapping[TopicPartition, int]] = {
            name: dict(offsets) for name, offsets in self._checkpoints
        }
        """The content of the checkpoint files."""
        self._checkpoint_lock = threading.Lock()
        self._deleted: list[tuple[int, int, Path]] = []  # (time of deletion, delay, directory to remove)
        # The partitions that this run has not opened. After an unclean stop they still need recovery.
        self._unopened = set(self.topic_partitions_on_disk())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        cluster_id: str,
        node_id: int,
        new_directory_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> LogDirectory:
        """Locks the directory, which is created if necessary, and reads the files of the last run.

        Raises LogDirectoryInUseError, OSError, and CorruptFileError, which also reports that the directory
        belongs to another cluster or node.
        """
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(directory)
        try:
            meta = read_meta_properties(directory)
            if meta is None:
                meta = MetaProperties(cluster_id, node_id, topic_id_text(new_directory_id()))
                write_meta_properties(directory, meta)
            for name, expected, found in (
                ("cluster.id", cluster_id, meta.cluster_id),
                ("node.id", str(node_id), str(meta.node_id)),
            ):
                if expected != found:
                    raise CorruptFileError(
                        f"{directory} has {name}={found} in its meta.properties, expected {expected}"
                    )
            clean_epoch = take_clean_shutdown_marker(directory)
            log_directory = cls(directory, lock, meta, clean_epoch)
            if not has_listed_segments(meta, clean_epoch):
                log_directory._forget_listed_segments()
            if listed_segments_epoch(meta) != life_of(meta).broker_epoch:
                log_directory.remember(life_of(meta))
            log_directory._find_deleted()
        except BaseException:
            lock.release()
            raise
        return log_directory

    def _forget_listed_segments(self) -> None:
        """Removes the lists of segments, because another program may have added and removed segments since.

        They are written when the partitions are opened. The lists that exist from now on are this run's.
        """
        for entry in self.path.iterdir():
            if entry.is_dir():
                (entry / SEGMENTS_CHECKPOINT_FILE).unlink(missing_ok=True)

    def _find_deleted(self) -> None:
        """Schedules the removal of deleted partitions whose files the last run did not remove."""
        for entry in self.path.iterdir():
            if entry.name.endswith(DELETED_DIRECTORY_SUFFIX) and entry.is_dir():
                self._deleted.append((0, 0, entry))

    # -- partitions

    def topic_partitions_on_disk(self) -> list[TopicPartition]:
        """Returns all partitions that have a directory here, open or not, sorted.

        A directory without a segment is not a partition, whatever its name ("backup-20240101").
        """
        found = (
            (entry, parse_partition_directory_name(entry.name))
            for entry in self.path.iterdir()
            if entry.is_dir()
        )
        return sorted(
            partition
            for entry, partition in found
            if partition is not None
            and partition.topic not in NOT_OF_BROKERS
            and any(entry.glob(f"*{LOG_SUFFIX}"))
        )

    def topic_id_on_disk(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        """Returns the id in `partition.metadata`, None without a file. Raises CorruptFileError, OSError."""
        return read_topic_id(self._path_of(topic_partition))

    def open_partition(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: LogConfig,
        *,
        now_ms: WallMs,
        is_only_replica: bool = False,
        topic_settings: Mapping[str, str] | None = None,
        new_unique: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> OpenedLog:
        """Opens the partition's log, which is created or recovered if necessary.

        A directory of a deleted topic with the same name (and another id) is set aside first. Unless it
        `is_only_replica`, a log without its first segments is not opened. The topic's overrides,
        `topic_settings`, are copied to the directory. Raises LogStorageError.
        """
        directory = self._path_of(topic_partition)
        try:
            if directory.exists():
                found_id = read_topic_id(directory)
                if found_id is not None and found_id != topic_id:
                    self._set_aside(topic_partition, new_unique())
                    found_id = None
            else:
                found_id = None
            is_new = not directory.exists()
            if is_new:
                self._forget_on_file(topic_partition)
                directory.mkdir()
            if found_id is None:
                write_topic_id(directory, topic_id)
        except (OSError, CorruptFileError) as error:
            raise LogStorageError(f"{directory} cannot be opened: {error}") from error
        opened = PartitionLog.open(
            directory,
            config,
            now_ms=now_ms,
            recovery_point=self._recovery_points.get(topic_partition, 0),
            log_start_offset=self._log_start_offsets.get(topic_partition, 0),
            high_watermark=self._high_watermark_at_stop(topic_partition),
            clean_shutdown=is_new or self.was_clean or topic_partition not in self._unopened,
            is_suspect=self.is_suspect,
            is_only_replica=is_only_replica,
            open_segments=self.open_segments,
        )
        storage = opened.storage
        if topic_settings is not None:
            storage.keep_topic_settings(topic_settings)
        storage.clean_offset = self._clean_offsets.get(topic_partition, NEVER_CLEANED)
        if storage.clean_offset > storage.log.log_end_offset:
            storage.clean_offset = NEVER_CLEANED
        if storage.cut_at_opening is not None:
            _log.warning(
                "recovery has cut the log", partition=str(topic_partition), where=storage.cut_at_opening
            )
        self._unopened.discard(topic_partition)
        self.partitions[topic_partition] = storage
        return opened

    def _high_watermark_at_stop(self, topic_partition: TopicPartition) -> int:
        """Returns the high watermark when the broker stopped, 0 for a log that this run has opened before: it
        may have been truncated since its last checkpoint.
        """
        return self.high_watermarks.get(topic_partition, 0) if topic_partition in self._unopened else 0

    def recover_partition(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig, *, now_ms: WallMs
    ) -> PartitionLog:
        """Recovers a log ahead of time, so that it counts as clean when it is opened.

        The result tells what recovery found; the caller must not use it for anything else. Raises
        LogStorageError.
        """
        storage = self.open_partition(topic_partition, topic_id, config, now_ms=now_ms).storage
        del self.partitions[topic_partition]
        return storage

    def close_partition(
        self, topic_partition: TopicPartition, producer_snapshot: bytes | None = None
    ) -> None:
        """Flushes and closes a log; its files remain. Raises LogStorageError.

        `producer_snapshot` describes the producers at the log end (see `PartitionLog.close`).
        """
        storage = self.partitions.pop(topic_partition, None)
        if storage is not None:
            self._unopened.add(topic_partition)
            storage.close(producer_snapshot)
            self._unopened.discard(topic_partition)
            self._note_checkpoints(topic_partition, storage)

    def delete_partition(
        self,
        topic_partition: TopicPartition,
        now_ms: WallMs,
        *,
        new_unique: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        """Renames the directory at once; `remove_deleted_partitions` later removes the files.

        The delay between the two is `file.delete.delay.ms`. Raises LogStorageError.
        """
        storage = self.partitions.pop(topic_partition, None)
        directory = self._path_of(topic_partition)
        target = self.path / renamed_directory_name(topic_partition, new_unique(), DELETED_DIRECTORY_SUFFIX)
        delay_ms = 0
        if storage is not None:
            storage.mark_deleted(str(target))
            delay_ms = storage.log.config.file_delete_delay_ms
        elif directory.exists():
            _rename(directory, target)
        self._unopened.discard(topic_partition)
        self._deleted.append((now_ms, delay_ms, target))
        self._forget_checkpoints(topic_partition)

    def remove_deleted_partitions(self, now_ms: WallMs) -> int:
        """Removes the files of deleted partitions whose delay has passed. Returns the number of these
        partitions.

        Raises LogStorageError.
        """
        due = [deleted for deleted in list(self._deleted) if is_over(deleted[0], deleted[1], now_ms)]
        for deleted in due:
            try:
                if deleted[2].exists():
                    shutil.rmtree(deleted[2])
            except OSError as error:
                raise LogStorageError(f"{deleted[2]} cannot be removed: {error}") from error
            self._deleted.remove(deleted)
        return len(due)

    def remove_strays(
        self, expected: Collection[TopicPartition], *, new_unique: Callable[[], uuid.UUID] = uuid.uuid4
    ) -> list[TopicPartition]:
        """Renames the partitions on disk that are neither open nor expected to `...-stray`, and returns them.

        Their files are kept. Raises LogStorageError.
        """
        strays = [
            stray
            for stray in self.topic_partitions_on_disk()
            if stray not in expected and stray not in self.partitions
        ]
        for stray in strays:
            self._set_aside(stray, new_unique())
        return strays

    def _set_aside(self, topic_partition: TopicPartition, unique: uuid.UUID) -> None:
        name = renamed_directory_name(topic_partition, unique, STRAY_DIRECTORY_SUFFIX)
        _rename(self._path_of(topic_partition), self.path / name)
        self._unopened.discard(topic_partition)
        self._forget_checkpoints(topic_partition)

    def _path_of(self, topic_partition: TopicPartition) -> Path:
        return self.path / partition_directory_name(topic_partition)

    def keep_broker_settings(self, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> None:
        """Writes the copy of the settings that AlterConfigs has set for all brokers and for this one."""
        keep_broker_settings(self.path, of_all, of_this)

    def remember(self, life: Life) -> None:
        """Writes the facts about this run that the next start needs to `meta.properties`. Raises OSError."""
        with self._checkpoint_lock:
            self._remember(life)

    def remember_lost_tail(self, topic_partition: TopicPartition) -> None:
        """Records that a replica has lost records.

        The recovery that found the loss has cut the log, so no later recovery can find it again. Raises
        OSError.
        """
        with self._checkpoint_lock:
            life = life_of(self.meta)
            if topic_partition not in life.lost_tails:
                self._remember(life._replace(lost_tails=(*life.lost_tails, topic_partition)))

    def _remember(self, life: Life) -> None:
        self.meta = with_life(self.meta, life)
        write_meta_properties(self.path, self.meta)

    # -- checkpoints

    def _note_checkpoints(self, topic_partition: TopicPartition, storage: PartitionLog) -> None:
        self._recovery_points[topic_partition] = storage.recovery_point
        self._log_start_offsets[topic_partition] = storage.log.log_start_offset
        self._note_clean_offset(topic_partition, storage)

    def _note_clean_offset(self, topic_partition: TopicPartition, storage: PartitionLog) -> None:
        if storage.clean_offset >= 0:
            self._clean_offsets[topic_partition] = storage.clean_offset
        else:
            self._clean_offsets.pop(topic_partition, None)

    @property
    def _checkpoints(self) -> tuple[tuple[str, dict[TopicPartition, int]], ...]:
        return (
            (RECOVERY_POINT_CHECKPOINT, self._recovery_points),
            (LOG_START_OFFSET_CHECKPOINT, self._log_start_offsets),
            (CLEANER_OFFSET_CHECKPOINT, self._clean_offsets),
            (HIGH_WATERMARK_CHECKPOINT, self.high_watermarks),
        )

    def _forget_checkpoints(self, topic_partition: TopicPartition) -> None:
        for _, offsets in self._checkpoints:
            offsets.pop(topic_partition, None)

    def _forget_on_file(self, topic_partition: TopicPartition) -> None:
        """Removes the lines of an earlier topic of this name from the files. After a kill, they would count
        for the new topic: a log that ends below its log start is removed. Raises OSError.
        """
        self._forget_checkpoints(topic_partition)
        for name, offsets in self._checkpoints:
            with self._checkpoint_lock:
                if topic_partition in self._on_file[name]:
                    self._write_locked(name, offsets)

    def is_recovery_point_lowered(self, topic_partition: TopicPartition) -> bool:
        """Returns whether the log was cut below its recovery point on file.

        Before anything is appended there, `checkpoint_recovery_points` must have written the new one.
        Otherwise a start after a crash of the machine takes what is below the old one for flushed.
        """
        storage, on_file = self.partitions.get(topic_partition), self._on_file[RECOVERY_POINT_CHECKPOINT]
        return storage is not None and storage.recovery_point < on_file.get(topic_partition, 0)

    def checkpoint_recovery_points(self) -> None:
        """Raises LogStorageError, like the other methods that write checkpoints."""
        try:
            with self._checkpoint_lock:  # so that no older recovery point is written after a newer one
                for topic_partition, storage in list(self.partitions.items()):
                    self._recovery_points[topic_partition] = storage.recovery_point
                self._write_locked(RECOVERY_POINT_CHECKPOINT, self._recovery_points)
        except OSError as error:
            path = self.path / RECOVERY_POINT_CHECKPOINT
            raise LogStorageError(f"{path} cannot be written: {error}") from error

    def checkpoint_log_start_offsets(self) -> None:
        """Writes the log starts. A log start never passes the high watermark, and recovery relies on that, so
        the checkpointed high watermarks are raised first where they are older.
        """
        is_higher = False
        for topic_partition, storage in list(self.partitions.items()):
            log_start_offset = storage.log.log_start_offset
            self._log_start_offsets[topic_partition] = log_start_offset
            if log_start_offset > self.high_watermarks.get(topic_partition, 0):
                self.high_watermarks[topic_partition] = log_start_offset
                is_higher = True
        if is_higher:
            self._write(HIGH_WATERMARK_CHECKPOINT, self.high_watermarks)
        self._write(LOG_START_OFFSET_CHECKPOINT, self._log_start_offsets)

    def checkpoint_clean_offsets(self) -> None:
        """Writes the offset up to which each compacted log is clean; no file is created if there is none."""
        for topic_partition, storage in list(self.partitions.items()):
            self._note_clean_offset(topic_partition, storage)
        if self._clean_offsets or (self.path / CLEANER_OFFSET_CHECKPOINT).exists():
            self._write(CLEANER_OFFSET_CHECKPOINT, self._clean_offsets)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Writes the high watermarks of the open partitions; those of the other partitions remain."""
        self.high_watermarks.update(high_watermarks)
        self._write(HIGH_WATERMARK_CHECKPOINT, self.high_watermarks)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            with self._checkpoint_lock:
                self._write_locked(name, offsets)
        except OSError as error:
            raise LogStorageError(f"{self.path / name} cannot be written: {error}") from error

    def _write_locked(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        content = dict(offsets)
        write_offsets(self.path / name, content)
        self._on_file[name] = content

    # -- closing

    def close(
        self,
        *,
        broker_epoch: int = UNKNOWN_EPOCH,
        producer_snapshots: Mapping[TopicPartition, bytes] | None = None,
    ) -> None:
        """Closes all partitions, writes the checkpoints and the clean-shutdown marker, and unlocks.

        It writes no marker if a partition failed to close, if one still needs recovery since an unclean stop,
        or if the controller does not know yet that logs are suspect. Raises LogStorageError.
        """
        snapshots = producer_snapshots or {}

        failures: list[str] = []
        try:
            with ThreadPoolExecutor(CLOSING_THREADS) as threads:
                closed = threads.map(
                    lambda open_one: self._problem_of_closing(open_one, snapshots.get(open_one)),
                    list(self.partitions),
                )
                failures += [problem for problem in closed if problem is not None]
            self.checkpoint_recovery_points()
            self.checkpoint_log_start_offsets()
            self.checkpoint_clean_offsets()
            self.checkpoint_high_watermarks({})
            if not failures and not self.has_untold_damage and (self.was_clean or not self._unopened):
                is_unregistered = broker_epoch == UNKNOWN_EPOCH  # then this run changed nothing
                epoch = self.previous_broker_epoch if is_unregistered else broker_epoch
                if listed_segments_epoch(self.meta) != epoch:
                    self.meta = with_listed_segments(self.meta, epoch)
                    write_meta_properties(self.path, self.meta)
                write_clean_shutdown_marker(self.path, epoch)
        except OSError as error:
            failures.append(str(error))
        finally:
            self._lock.release()
        if failures:
            raise LogStorageError("; ".join(failures))

    def _problem_of_closing(
        self, topic_partition: TopicPartition, producer_snapshot: bytes | None
    ) -> str | None:
        try:
            self.close_partition(topic_partition, producer_snapshot)
        except LogStorageError as error:
            return str(error)
        return None

    def abandon(self) -> None:
        """Closes the files, unlocks and writes nothing, as if the process had died."""
        for storage in self.partitions.values():
            storage.log.close_files()
        self._lock.release()


def _read_or_start_over(path: Path) -> dict[TopicPartition, int]:
    """Returns no offsets if the checkpoint is invalid, as Kafka does. Raises OSError.

    Then logs are recovered from their beginning, and the high watermarks are determined again. The next
    checkpoint replaces the file.
    """
    try:
        return read_offsets(path)
    except CorruptFileError as error:
        _log.warning("a checkpoint is rebuilt", reason=str(error))
        return {}


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        raise LogStorageError(f"{source} cannot be renamed: {error}") from error


def find_lost_tails(
    directory: LogDirectory, config: LogConfig, *, threads: int, now_ms: WallMs
) -> tuple[TopicPartition, ...]:
    """Recovers all logs after an unclean stop, and returns the replicas that may have lost records, sorted.

    These are the replicas whose log was damaged before its end, whose log ends below the checkpointed high
    watermark, or whose log cannot be opened. The result includes the replicas that an earlier start found,
    until a controller has acted on them. After a clean stop, no log is read.

    This takes as long as the recovery, so the event loop must not call it. Raises OSError.
    """
    if directory.was_clean:
        return life_of(directory.meta).lost_tails

    def look_at(topic_partition: TopicPartition) -> None:
        try:
            has_lost = _has_lost(directory, config, topic_partition, now_ms)
        except (LogStorageError, CorruptFileError, OSError) as error:
            _log.error("replica cannot be recovered", partition=str(topic_partition), reason=str(error))
            has_lost = True
        if has_lost:
            directory.remember_lost_tail(topic_partition)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(look_at, directory.topic_partitions_on_disk()))  # raises the exceptions of the calls
    return tuple(sorted(life_of(directory.meta).lost_tails))


def _has_lost(
    directory: LogDirectory, config: LogConfig, topic_partition: TopicPartition, now_ms: WallMs
) -> bool:
    topic_id = directory.topic_id_on_disk(topic_partition)
    if topic_id is None:
        return False  # the machine failed while the directory was created
    high_watermark = directory.high_watermarks.get(topic_partition, 0)
    storage = directory.recover_partition(topic_partition, topic_id, config, now_ms=now_ms)
    if storage.was_damaged or storage.log.log_end_offset < high_watermark:
        _log.warning(
            "replica has lost records",
            partition=str(topic_partition),
            log_end_offset=storage.log.log_end_offset,
            high_watermark=high_watermark,
            cut=storage.cut_at_opening,
        )
        return True
    return False
