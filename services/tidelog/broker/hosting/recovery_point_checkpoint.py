"""Lowers the recovery points on disk when logs are cut."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from tidelog.broker.log.errors import LogStorageError

if TYPE_CHECKING:
    from tidelog.broker.log.log_directory import LogDirectory
    from tidelog.model.topics import TopicPartition

_log = structlog.get_logger(__name__)


class RecoveryPointCheckpoint:
    """Writes the checkpoint for logs that were cut. Logs that are cut during a write share the next one."""

    def __init__(self, log_directory: LogDirectory) -> None:
        self._log_directory = log_directory
        self._one_write_at_a_time = asyncio.Lock()

    async def log_was_cut(self, topic_partition: TopicPartition) -> None:
        """Returns when the recovery point on disk is not above that of the log.

        A failure is only logged: the periodic checkpoint repeats the write, and a disk that refuses writes
        should not stop the partition twice.
        """
        async with self._one_write_at_a_time:
            if self._log_directory.is_recovery_point_lowered(topic_partition):
                try:
                    await asyncio.to_thread(self._log_directory.checkpoint_recovery_points)
                except LogStorageError as error:
                    _log.error(
                        "recovery point cannot be lowered", partition=str(topic_partition), reason=str(error)
                    )
