"""A broker's periodic work: retention, flushes, checkpoints, the expiration of idle producers, and the dead
letters of earlier leaders. Disk work runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from tidelog.broker.log.log_config import segments_with_unread_times
from tidelog.broker.partition.roles import FetchState
from tidelog.log_format.batches import TornLogError
from tidelog.model.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.broker.cluster.view import CurrentSettings
    from tidelog.broker.hosting.hosted_partitions import HostedPartitions
    from tidelog.broker.hosting.log_cleaner import LogCleaner
    from tidelog.broker.hosting.replica import Replica
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.kernel.clock import Clock, SteadyClock

REMOVE_FILES_INTERVAL_MS: Final = 1_000
DEAD_LETTERS_INTERVAL_MS: Final = 5_000
REPLICAS_OF_A_TURN: Final = 500
"""The replicas that a duty looks at in one turn of the event loop."""

_log = structlog.get_logger(__name__)


class Housekeeping:
    """Runs one asyncio task per duty. If a duty fails, it is logged and runs again after its interval."""

    def __init__(
        self,
        settings: CurrentSettings,
        hosted: HostedPartitions,
        log_directory: LogDirectory,
        log_cleaner: LogCleaner,
        clock: Clock,
        steady_clock: SteadyClock,
        continue_dead_letters: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._hosted = hosted
        self._log_directory = log_directory
        self._log_cleaner = log_cleaner
        self._clock = clock
        self._steady_clock = steady_clock
        self._continue_dead_letters = continue_dead_letters
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        settings = self._settings.broker
        self._log_cleaner.start()
        self._every(
            settings.log_retention_check_interval_ms, self.apply_retention, settings.log_initial_task_delay_ms
        )
        self._every(REMOVE_FILES_INTERVAL_MS, self.remove_deleted_files)
        self._every(
            min(settings.log_flush_scheduler_interval_ms, settings.log_flush_offset_checkpoint_interval_ms),
            self.flush,
        )
        self._every(settings.log_flush_offset_checkpoint_interval_ms, self.checkpoint_recovery_points)
        self._every(settings.replica_high_watermark_checkpoint_interval_ms, self.checkpoint_high_watermarks)
        self._every(settings.log_flush_start_offset_checkpoint_interval_ms, self.checkpoint_log_start_offsets)
        self._every(settings.producer_id_expiration_check_interval_ms, self.expire_producers)
        self._every(DEAD_LETTERS_INTERVAL_MS, self._continue_dead_letters)

    async def stop(self) -> None:
        await self._log_cleaner.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _every(
        self, interval_ms: int, duty: Callable[[], Awaitable[None]], first_ms: int | None = None
    ) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(interval_ms, duty, first_ms), name=duty.__name__))

    async def _repeat(
        self, interval_ms: int, duty: Callable[[], Awaitable[None]], first_ms: int | None
    ) -> None:
        await asyncio.sleep(min(interval_ms, first_ms or interval_ms) / 1000)
        while True:
            try:
                await duty()
            except (KafkaError, OSError) as error:
                _log.error("housekeeping failed", duty=duty.__name__, reason=str(error))
            except Exception as error:  # noqa: BLE001 - a bug: the duty still has to run after its next interval
                _log.error("housekeeping failed", duty=duty.__name__, exc_info=error)
            await asyncio.sleep(interval_ms / 1000)

    async def _each(self, work: Callable[[Replica], Awaitable[None]]) -> None:
        """Calls `work` for every replica. A failure is logged, and the next replica follows. Replicas that
        are closed meanwhile are skipped.
        """
        replicas = self._hosted.replicas
        for number, (topic_partition, replica) in enumerate(list(replicas.items()), 1):
            if number % REPLICAS_OF_A_TURN == 0:
                await asyncio.sleep(0)
            if replicas.get(topic_partition) is not replica:
                continue
            try:
                await work(replica)
            except (KafkaError, OSError) as error:
                _log.error(
                    "housekeeping failed",
                    duty=work.__name__.strip("_"),
                    partition=str(topic_partition),
                    reason=str(error),
                )

    # -- duties

    async def apply_retention(self) -> None:
        """Deletes the segments that exceed `retention.ms` or `retention.bytes`, if the settings are known."""
        if self._settings.are_known:
            await self._each(self._retain)

    async def _retain(self, replica: Replica) -> None:
        now_ms = self._steady_clock.earlier_ms()
        for segment in segments_with_unread_times(replica.log.segments, replica.log.config, now_ms):
            try:
                segment.learn_unknown_times(await asyncio.to_thread(segment.read_unknown_times))
            except TornLogError as error:  # then its last append counts
                _log.error("the times of a segment cannot be read", segment=segment.path, reason=str(error))
        deleted = replica.delete_old_segments(now_ms)
        if deleted:
            _log.info(
                "segments deleted by retention", partition=str(replica.topic_partition), segments=deleted
            )
        await asyncio.sleep(0)

    async def remove_deleted_files(self) -> None:
        await self._each(self._remove_files)
        now_ms = self._clock.wall_ms()
        await asyncio.to_thread(self._log_directory.remove_deleted_partitions, now_ms)

    async def _remove_files(self, replica: Replica) -> None:
        if replica.storage.has_deleted_files and not _is_being_cut(replica):
            await asyncio.to_thread(replica.storage.remove_deleted_files, self._steady_clock.earlier_ms())

    async def flush(self) -> None:
        """Flushes the logs for which `flush.ms` or a new segment requires it."""
        await self._each(self._flush)

    async def _flush(self, replica: Replica) -> None:
        now_ms = self._clock.wall_ms()
        if replica.storage.is_flush_due(now_ms):
            await replica.flush(now_ms)

    async def checkpoint_recovery_points(self) -> None:
        await asyncio.to_thread(self._log_directory.checkpoint_recovery_points)

    async def checkpoint_high_watermarks(self) -> None:
        marks = {
            topic_partition: replica.core.high_watermark
            for topic_partition, replica in self._hosted.replicas.items()
        }
        await asyncio.to_thread(self._log_directory.checkpoint_high_watermarks, marks)

    async def checkpoint_log_start_offsets(self) -> None:
        await asyncio.to_thread(self._log_directory.checkpoint_log_start_offsets)

    async def expire_producers(self) -> None:
        """Forgets the producers that were idle for `producer.id.expiration.ms`, if the settings are known."""
        if self._settings.are_known:
            await self._each(self._expire_producers)

    async def _expire_producers(self, replica: Replica) -> None:
        if not _is_being_cut(replica):
            replica.core.producers.expire(self._clock.wall_ms())
        await asyncio.sleep(0)


def _is_being_cut(replica: Replica) -> bool:
    """Returns whether a thread may be changing the replica's segments and producer state."""
    return replica.core.fetch_state is FetchState.TRUNCATING
