"""Compacts this broker's partitions: picks the dirtiest log, runs its worker and swaps in the cleaned
segments.

The event loop only picks logs and exchanges segment objects. The worker process reads and writes, and a
thread renames the files. Source: Kafka's `LogCleaner`, `LogCleanerManager.cleanableOffsets`, `LogToClean`,
`UnifiedLog.nonActiveLogSegmentsFrom`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tidelog.broker.log.cleaning.cleaning_job import (
    CleanedSegment,
    CleaningAnswer,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    LastRecord,
    SourceSegment,
    decode_answer,
)
from tidelog.broker.log.cleaning.segment_files import remove_cleaned_files
from tidelog.broker.log.cleaning.segment_swap import SegmentSwap
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.segment import Segment, segment_index
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.partition.roles import FetchState
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import known_max_timestamp
from tidelog.settings.setting import LONG_MAX
from tidelog.settings.topic_settings import TopicSettings

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import CurrentSettings
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.hosting.replica import Replica
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.kernel.clock import SteadyClock

LOGS_LOOKED_AT_A_TURN: Final = 50
MAX_MAP_BYTES: Final = 2**31 - 1
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""An answer has a base offset for each segment that is replaced."""
_WORKER: Final = "tidelog.broker.log.cleaning.worker"
_MIN_BUFFER_BYTES: Final = 16 * 1024
RECENT_CLEANINGS: Final = 20

DONE: Final = "done"
FAILED: Final = "failed"
CALLED_OFF: Final = "called off"

_log = structlog.get_logger(__name__)


class Cleaning(NamedTuple):
    """A cleaning that succeeded."""

    seconds: float
    bytes_read: int
    bytes_kept: int


class CleanerCounts:
    """The counters of all cleanings. Only the event loop changes them; any thread may read them."""

    __slots__ = ("bytes_kept", "bytes_read", "last_ended_s", "max_dirty_ratio", "outcomes", "recent")

    def __init__(self) -> None:
        self.outcomes = {DONE: 0, FAILED: 0, CALLED_OFF: 0}
        self.bytes_read = 0
        self.bytes_kept = 0
        self.max_dirty_ratio = 0.0
        """The dirty ratio of the dirtiest log at the last check."""
        self.last_ended_s: float | None = None
        """The end of the last cleaning, by the monotonic clock."""
        self.recent: deque[Cleaning] = deque(maxlen=RECENT_CLEANINGS)

    def ended(self, outcome: str, cleaning: Cleaning | None, now_s: float) -> None:
        """Counts a cleaning; `cleaning` is None unless it succeeded."""
        self.outcomes[outcome] += 1
        self.last_ended_s = now_s
        if cleaning is not None:
            self.bytes_read += cleaning.bytes_read
            self.bytes_kept += cleaning.bytes_kept
            self.recent.append(cleaning)


class LogCleaner:
    """Runs `log.cleaner.threads` tasks, each with its own worker process while it has a log to clean."""

    def __init__(
        self,
        settings: CurrentSettings,
        hosted: HostedPartitions,
        log_directory: LogDirectory,
        clock: SteadyClock,
    ) -> None:
        self._settings = settings
        self._hosted = hosted
        self._log_directory = log_directory
        self._clock = clock
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._in_progress: dict[TopicPartition, asyncio.Task[bool]] = {}
        self._uncleanable: dict[TopicPartition, Replica] = {}
        self.counts = CleanerCounts()
        """The counters for the metrics."""

    @property
    def uncleanable_count(self) -> int:
        """The number of logs that cannot be cleaned. Any thread may read it."""
        return len(self._uncleanable)

    def now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def start(self) -> None:
        if self._settings.broker.log_cleaner_enable:
            self._tasks[-1] = asyncio.create_task(self._keep_tasks(), name="log cleaner")

    async def stop(self) -> None:
        """Stops all tasks. When it returns, no file is being renamed."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def forget(self, topic_partition: TopicPartition) -> None:
        """Stops cleaning a partition, before the partition is closed or deleted."""
        self._uncleanable.pop(topic_partition, None)
        cleaning = self._in_progress.get(topic_partition)
        if cleaning is not None:
            await _called_off(cleaning)

    async def _keep_tasks(self) -> None:
        """Keeps as many tasks as `log.cleaner.threads` says, which can change."""
        while True:
            for number in range(self._settings.broker.log_cleaner_threads):
                task = self._tasks.get(number)
                if task is None or task.done():
                    self._tasks[number] = asyncio.create_task(self._run(number), name=f"log cleaner {number}")
            await asyncio.sleep(self._backoff_s)

    @property
    def _backoff_s(self) -> float:
        return max(0.001, self._settings.broker.log_cleaner_backoff_ms / 1000)

    async def _run(self, number: int) -> None:
        worker = WorkerProcess()
        try:
            while number < self._settings.broker.log_cleaner_threads:
                if not await self._clean_dirtiest(worker):
                    await worker.stop()
                    await asyncio.sleep(self._backoff_s)
        finally:
            await worker.stop()

    # -- picking a log

    async def _clean_dirtiest(self, worker: WorkerProcess) -> bool:
        """Cleans the dirtiest log. Returns False if no log needs it now, or the settings are not known."""
        if not self._settings.are_known:
            return False
        picked = await self._dirtiest()
        if picked is None:
            return False
        replica, found = picked
        topic_partition = replica.topic_partition
        cleaning = asyncio.create_task(self._clean(worker, replica, found), name=f"clean {topic_partition}")
        self._in_progress[topic_partition] = cleaning
        try:
            await asyncio.wait([cleaning])
        finally:
            if not cleaning.done():  # this task is cancelled
                await _called_off(cleaning)
            del self._in_progress[topic_partition]
        if cleaning.cancelled():
            return True
        error = cleaning.exception()
        if error is not None:
            _log.error("compaction failed", partition=str(topic_partition), exc_info=error)
            self._uncleanable[topic_partition] = replica
            return False
        return cleaning.result()

    async def _dirtiest(self) -> tuple[Replica, Dirtiness] | None:
        best: tuple[Replica, Dirtiness] | None = None
        highest_ratio = 0.0
        replicas = self._hosted.replicas
        for number, replica in enumerate(list(replicas.values())):
            if number % LOGS_LOOKED_AT_A_TURN == LOGS_LOOKED_AT_A_TURN - 1:
                await asyncio.sleep(0)
            if not replica.settings.is_compacted or not self._is_free(replica):
                continue
            await self._learn_first_timestamps(replica)
            found = self._dirtiness(replica)
            highest_ratio = max(highest_ratio, found.ratio)
            if found.is_due(replica.settings.min_cleanable_dirty_ratio) and (
                best is None or found.ratio > best[1].ratio
            ):
                best = replica, found
        self.counts.max_dirty_ratio = highest_ratio
        return best if best is not None and self._is_free(best[0]) else None

    def _dirtiness(self, replica: Replica) -> Dirtiness:
        return dirtiness(
            replica.storage, replica.settings, replica.core.last_stable_offset, self._clock.earlier_ms()
        )

    def _is_free(self, replica: Replica) -> bool:
        topic_partition = replica.topic_partition
        return (
            self._hosted.replicas.get(topic_partition) is replica
            and topic_partition not in self._in_progress
            and self._uncleanable.get(topic_partition) is not replica
            and replica.core.fetch_state is not FetchState.TRUNCATING
        )

    async def _learn_first_timestamps(self, replica: Replica) -> None:
        """Reads unknown first timestamps of segments, which `max.compaction.lag.ms` needs."""
        if replica.settings.max_compaction_lag_ms == LONG_MAX:
            return
        unknown = [
            s for s in closed_dirty_segments(replica.storage) if s.first_timestamp < 0 and s.size_bytes
        ]
        if unknown:
            with suppress(OSError, TornLogError):
                await asyncio.to_thread(_read_first_timestamps, unknown)

    # -- cleaning

    async def _clean(self, worker: WorkerProcess, replica: Replica, found: Dirtiness) -> bool:
        """Cleans one log. Returns True if it is cleaner than before."""
        storage, partition = replica.storage, str(replica.topic_partition)
        sources = {
            segment.base_offset: segment
            for segment in storage.log.segments
            if segment.base_offset < found.first_uncleanable_offset
        }
        cuts, began_s, outcome = storage.cut_count, self.now_s(), FAILED
        try:
            async for answer in worker.clean(self._job(replica, found, list(sources.values()))):
                if isinstance(answer, CleaningDone):
                    is_cleaner = await self._done(replica, found, answer)
                    cleaning = Cleaning(self.now_s() - began_s, answer.bytes_read, answer.bytes_kept)
                    self.counts.ended(DONE, cleaning, self.now_s())
                    return is_cleaner
                if isinstance(answer, CleaningFailed):
                    _log.error("compaction failed", partition=partition, reason=answer.reason)
                    if answer.is_damage:
                        self._uncleanable[replica.topic_partition] = replica
                    break
                if not await self._swap_in(replica, sources, answer, cuts):
                    _log.info("compaction was called off because the log was changed", partition=partition)
                    outcome = CALLED_OFF
                    break
        except (WorkerEndedError, LogStorageError, OSError) as error:
            _log.error("compaction failed", partition=partition, reason=str(error))
            if storage.is_swapping:
                self._uncleanable[replica.topic_partition] = replica
        except asyncio.CancelledError:
            self.counts.ended(CALLED_OFF, None, self.now_s())
            await self._call_off(worker, replica)
            raise
        self.counts.ended(outcome, None, self.now_s())
        await self._call_off(worker, replica)
        return False

    async def _call_off(self, worker: WorkerProcess, replica: Replica) -> None:
        await worker.stop()
        with suppress(OSError):
            await asyncio.to_thread(remove_cleaned_files, replica.log.directory.path)

    async def _swap_in(
        self, replica: Replica, sources: dict[int, Segment], cleaned: CleanedSegment, cuts: int
    ) -> bool:
        swap = SegmentSwap(replica.storage, [sources[base] for base in cleaned.replaces], cleaned)
        swapping = asyncio.ensure_future(replica.swap_in(swap, cuts, self._clock.earlier_ms()))
        try:
            return await asyncio.shield(swapping)
        except asyncio.CancelledError:
            await asyncio.wait([swapping])  # a swap that has begun must be finished
            raise

    async def _done(self, replica: Replica, found: Dirtiness, done: CleaningDone) -> bool:
        storage = replica.storage
        is_cleaner = done.clean_offset > found.first_dirty_offset
        if is_cleaner:
            storage.clean_offset = min(done.clean_offset, storage.log.log_end_offset)
            await asyncio.to_thread(self._log_directory.checkpoint_clean_offsets)
        else:
            self._uncleanable[replica.topic_partition] = replica
        _log.info(
            "log compacted",
            partition=str(replica.topic_partition),
            clean_offset=done.clean_offset,
            bytes_before=done.bytes_read,
            bytes_after=done.bytes_kept,
            records_before=done.records_read,
            records_after=done.records_kept,
            keys=done.keys,
        )
        return is_cleaner

    def _job(self, replica: Replica, found: Dirtiness, sources: list[Segment]) -> CleaningJob:
        settings, topic = self._settings.broker, replica.settings
        workers = max(1, settings.log_cleaner_threads)
        return CleaningJob(
            replica.log.directory.path,
            tuple(
                SourceSegment(
                    segment.base_offset,
                    segment.next_offset,
                    segment.size_bytes,
                    segment.offset_index.entry_count * segment.offset_index.ENTRY.size,
                    segment.time_index.entry_count * segment.time_index.ENTRY.size,
                )
                for segment in sources
            ),
            found.first_dirty_offset,
            found.first_uncleanable_offset,
            self._clock.earlier_ms(),
            topic.delete_retention_ms,
            topic.segment_bytes,
            topic.segment_index_bytes,
            topic.index_interval_bytes,
            min(settings.log_cleaner_dedupe_buffer_size // workers, MAX_MAP_BYTES),
            settings.log_cleaner_io_buffer_load_factor,
            max(settings.log_cleaner_io_buffer_size // workers // 2, _MIN_BUFFER_BYTES),
            settings.log_cleaner_io_max_bytes_per_second / workers,
            last_records_of(replica.core.producers),
            tuple(replica.log.aborted_across(found.first_uncleanable_offset)),
        )


async def _called_off(cleaning: asyncio.Task[bool]) -> None:
    """Cancels a task, but only once: a second call would end its wait for the thread that renames files."""
    if not cleaning.cancelling():
        cleaning.cancel()
    await asyncio.wait([cleaning])


def last_records_of(producers: ProducerState) -> tuple[LastRecord, ...]:
    """Returns the newest batch of each producer (Kafka's `lastRecordsOfActiveProducers`).

    These batches must stay, even without records.
    """
    return tuple(
        LastRecord(
            row.producer_id,
            row.producer_epoch,
            stored[-1].last_offset if (stored := producers.stored_batches(row.producer_id)) else -1,
        )
        for row in producers.describe()
    )


def _read_first_timestamps(segments: list[Segment]) -> None:
    for segment in segments:
        with segment.own_descriptor() as fd:
            _, header, _ = next(scan_headers(partial(os.pread, fd), 0, segment.size_bytes))
        segment.first_timestamp = known_max_timestamp(header)


class WorkerEndedError(RuntimeError):
    """The worker died during a job; the message gives the reason."""


class WorkerProcess:
    """A worker process for one job at a time.

    It runs in a separate session, so that Ctrl-C in a terminal reaches only the broker.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def clean(self, job: CleaningJob) -> AsyncIterator[CleaningAnswer]:
        """Sends a job and yields the answers. A caller that stops before the last answer calls `stop`.

        Raises WorkerEndedError, OSError.
        """
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.encode())
            await process.stdin.drain()
        except ConnectionError as error:
            raise WorkerEndedError(f"the cleaning worker does not accept a job: {error}") from error
        while True:
            line = await process.stdout.readline()
            if not line:
                raise WorkerEndedError(f"the cleaning worker ended with {await process.wait()}")
            yield decode_answer(line)

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_ANSWER_BYTES,
            start_new_session=True,
        )
        return self._process

    async def stop(self) -> None:
        """Kills the process. Files that it was writing are not part of the log."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class Dirtiness(NamedTuple):
    """The dirty part of a log, from `first_dirty_offset` up to `first_uncleanable_offset`.

    `is_overdue` says that `max.compaction.lag.ms` has passed.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return bool(self.dirty_bytes) and (self.is_overdue or self.ratio > min_ratio)


def dirtiness(
    storage: PartitionLog, settings: TopicSettings, last_stable_offset: int, now_ms: WallMs
) -> Dirtiness:
    """Returns the part of a log that may be cleaned; it ends at the base offset of a segment.

    It does not extend beyond the last stable offset, into the active segment, or into a segment with records
    younger than `min.compaction.lag.ms`.
    """
    segments = storage.log.segments
    first_dirty = first_dirty_offset(storage)
    limit = min(last_stable_offset, segments[-1].base_offset)
    closed_dirty = segments[segment_index(segments, first_dirty) : -1]
    if settings.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - settings.min_compaction_lag_ms
        young = next((s.base_offset for s in closed_dirty if s.largest_timestamp > youngest_ms), limit)
        limit = min(limit, young)
    limit = segments[segment_index(segments, max(limit, first_dirty))].base_offset
    clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < first_dirty)
    begin = segment_index(segments, min(first_dirty, limit))
    dirty_bytes = sum(s.size_bytes for s in segments[begin:] if s.base_offset < limit)
    oldest_ms = min((s.first_timestamp for s in closed_dirty if s.first_timestamp > 0), default=now_ms)
    is_overdue = oldest_ms < now_ms - settings.max_compaction_lag_ms
    return Dirtiness(first_dirty, limit, clean_bytes, dirty_bytes, is_overdue)


def first_dirty_offset(storage: PartitionLog) -> int:
    """Returns the end of the last cleaning, or the log start offset if that end is outside of the log."""
    if storage.log.log_start_offset <= storage.clean_offset <= storage.log.log_end_offset:
        return storage.clean_offset
    return storage.log.log_start_offset


def closed_dirty_segments(storage: PartitionLog) -> Sequence[Segment]:
    segments = storage.log.segments
    return segments[segment_index(segments, first_dirty_offset(storage)) : -1]
