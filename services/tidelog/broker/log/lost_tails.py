"""After an unclean stop: which replicas have lost something that others may have counted on.

It must be known before the broker registers: a replica that lost what it had acknowledged may not be elected
on the strength of it (DESIGN section 8, "Clean and unclean").
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog

from tidelog.broker.log.errors import CorruptFileError, LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.log.previous_life import life_of
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition

_log = structlog.get_logger(__name__)


def find_lost_tails(
    directory: LogDirectory, config: LogConfig, *, threads: int, now_ms: WallMs
) -> tuple[TopicPartition, ...]:
    """Recover every log of an unclean directory; answers, in order, the replicas that were damaged before
    their end, that end below their checkpointed high watermark, or that can't be opened. Those that an
    earlier start found are among them until a controller has acted on it.

    Takes as long as recovery takes: not for the event loop. After a clean stop nothing is read. Raises
    OSError.
    """
    if directory.was_clean:
        return life_of(directory.meta).lost_tails

    def look_at(topic_partition: TopicPartition) -> None:
        try:
            has_lost = _has_lost(directory, config, topic_partition, now_ms)
        except (LogStorageError, CorruptFileError, OSError) as error:
            _log.error("replica can't be recovered", partition=str(topic_partition), reason=str(error))
            has_lost = True
        if has_lost:
            directory.remember_lost_tail(topic_partition)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(look_at, directory.topic_partitions_on_disk()))  # raises what one of them raised
    return tuple(sorted(life_of(directory.meta).lost_tails))


def _has_lost(
    directory: LogDirectory, config: LogConfig, topic_partition: TopicPartition, now_ms: WallMs
) -> bool:
    topic_id = directory.topic_id_on_disk(topic_partition)
    if topic_id is None:
        return False  # it was just being made when the machine went down
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
