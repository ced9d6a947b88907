"""Finds the replicas that lost records in an unclean stop.

The broker must know them before it registers: a replica that lost acknowledged records must not be elected
leader because it was in the ISR before the stop (KIP-966).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog

from tidelog.broker.log.errors import LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.previous_life import life_of
from tidelog.kernel.instants import WallMs
from tidelog.log_format.directory import CorruptFileError
from tidelog.model.topics import TopicPartition

_log = structlog.get_logger(__name__)


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
