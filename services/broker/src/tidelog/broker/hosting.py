"""Which replicas a broker hosts: opening, closing, deleting and setting aside. The disk's part runs in a
thread.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import structlog
from tidelog.broker.log.errors import CorruptFileError, LogStorageError
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.replica import Replica
from tidelog.broker.topic_rules import log_config
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = structlog.get_logger(__name__)


async def open_replica(
    broker: Broker, topic_partition: TopicPartition, topic_id: uuid.UUID, overrides: Mapping[str, str]
) -> Replica:
    """Make or recover the log; the caller hosts it once it has a role. Raises LogStorageError."""
    settings = broker.topic_settings(overrides)
    directory = broker.log_directory
    log = await asyncio.to_thread(
        directory.open_partition,
        topic_partition,
        topic_id,
        log_config(settings),
        now_ms=broker.clock.now_ms(),
    )
    max_lag = broker.settings.replica_lag_max_messages
    core = PartitionCore(
        broker.broker_id,
        log.producer_state,
        log.leader_epochs,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=directory.high_watermarks.get(topic_partition, 0),
        min_in_sync_replicas=settings.min_insync_replicas,
        replica_lag_time_max_ms=broker.settings.replica_lag_time_max_ms,
        replica_lag_max_messages=max_lag if max_lag >= 0 else None,
    )
    traffic = broker.telemetry.topic(topic_partition.topic)
    log.flush_times = broker.telemetry.log_flushes
    replica = Replica(topic_partition, topic_id, core, log, settings, traffic, broker)
    broker.replicas[topic_partition] = replica
    return replica


async def close_replica(broker: Broker, topic_partition: TopicPartition, *, delete: bool) -> None:
    """Host it no longer; with `delete` its files go after `file.delete.delay.ms`. Raises LogStorageError."""
    replica = broker.replicas.pop(topic_partition, None)
    if replica is None:
        return
    await broker.fetchers.forget(topic_partition)
    await broker.log_cleaner.forget(topic_partition)
    replica.resign(broker.clock.now_ms())
    broker.leadership_changed(topic_partition)  # whoever waits for it learns so
    if not any(hosted.topic == topic_partition.topic for hosted in broker.replicas):
        broker.telemetry.forget_topic(topic_partition.topic)
    directory = broker.log_directory
    if delete:
        await asyncio.to_thread(directory.delete_partition, topic_partition, broker.clock.now_ms())
    else:
        await asyncio.to_thread(directory.close_partition, topic_partition)
        directory.high_watermarks[topic_partition] = replica.core.high_watermark


async def delete_unhosted(broker: Broker, topic_partition: TopicPartition, topic_id: uuid.UUID) -> None:
    """Have the files go of a replica that failed before its topic was deleted. Raises LogStorageError."""
    directory = broker.log_directory
    try:
        found_id = await asyncio.to_thread(directory.topic_id_on_disk, topic_partition)
    except (OSError, CorruptFileError) as error:
        raise LogStorageError(f"{topic_partition} can't be deleted: {error}") from error
    if found_id == topic_id:
        await asyncio.to_thread(directory.delete_partition, topic_partition, broker.clock.now_ms())


async def close_failed(broker: Broker, topic_partition: TopicPartition) -> None:
    """Let go of the files of a replica that could not take its role, so that it can be opened anew."""
    try:
        await asyncio.to_thread(broker.log_directory.close_partition, topic_partition)
    except KafkaError as error:
        _log.error("failed replica can't be closed", partition=str(topic_partition), reason=str(error))


async def set_strays_aside(broker: Broker, expected: Collection[TopicPartition]) -> None:
    """Replicas that the controller doesn't know: closed, renamed and kept, since data is never deleted on a
    guess.
    """
    for topic_partition in [known for known in broker.replicas if known not in expected]:
        await close_replica(broker, topic_partition, delete=False)
    strays = await asyncio.to_thread(broker.log_directory.remove_strays, expected)
    for stray in strays:
        _log.warning("partition unknown to the controller is set aside", partition=str(stray))


async def close_all(broker: Broker) -> None:
    """At a clean stop: flush, checkpoint, write the marker, unlock. Raises LogStorageError."""
    await broker.fetchers.stop()
    await broker.log_cleaner.stop()
    marks = {
        topic_partition: replica.core.high_watermark for topic_partition, replica in broker.replicas.items()
    }
    broker.log_directory.high_watermarks.update(marks)
    broker.replicas.clear()
    await asyncio.to_thread(broker.log_directory.close, broker_epoch=broker.broker_epoch)
