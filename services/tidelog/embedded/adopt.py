"""Adopts topics that are in the data directory but not in the metadata.

Apache Kafka wrote the directory, or the metadata was lost. The names and ids come from the partitions'
directories and their `partition.metadata`, and the settings from the copies in the directories. Nothing is
deleted from topics without such copies until an administrator confirms their settings (ADR 0067).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.partition_directory import read_topic_id
from tidelog.embedded.found_settings import found_broker_settings, found_topic_settings
from tidelog.embedded.log_survey import (
    NO_EPOCH,
    broker_settings_of,
    greatest_producer_id,
    latest_leader_epoch,
    partition_directories,
    topic_settings_of,
)
from tidelog.metadata.entries import (
    PRODUCER_ID_BLOCK_KEY,
    TOPIC_PREFIX,
    PartitionStateEntry,
    ProducerIdBlockEntry,
    TopicConfigEntry,
    TopicEntry,
    decode_entry,
    topic_key,
)
from tidelog.metadata.store import MAX_TXN_OPERATIONS, Compare, MetadataStore, Put
from tidelog.settings.topic_settings import are_confirmed

NO_CONTROLLER_EPOCH: Final = 0
PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""The number of ids above the greatest one in any producer snapshot that later batches may use."""

_log = structlog.get_logger(__name__)


async def adopt_topics(store: MetadataStore, log_dir: Path, node_id: int) -> None:
    """Writes the topics of `log_dir` into `store`, except those whose names the store knows.

    Raises OSError, CorruptFileError, StoreError.
    """
    known = {item.key for item in (await store.list_prefix(TOPIC_PREFIX)).items}
    found = {
        topic: partitions
        for topic, partitions in sorted(_topics_on_disk(log_dir).items())
        if topic_key(topic) not in known
    }
    if not found:
        return
    await _skip_producer_ids(store, [path for partitions in found.values() for path in partitions.values()])
    inherited = found_broker_settings({node_id: broker_settings_of(log_dir)})
    if not known:
        await store.txn([], [Put(entry.key, entry.encode()) for entry in inherited.entries])
    unconfirmed = 0
    for topic, partitions in found.items():
        settings = found_topic_settings(
            topic,
            [topic_settings_of(directory) for directory in partitions.values()],
            replicas=1,
            are_defaults_known=inherited.are_known,
        )
        unconfirmed += not are_confirmed(settings)
        await _adopt(store, topic, partitions, node_id, settings)
        _log.info("topic adopted from the data directory", topic=topic, partitions=len(partitions))
    if unconfirmed:
        _log.warning(
            "nothing is deleted from topics whose settings are not known; `tidelog topic confirm-settings` "
            "lists them",
            topics=unconfirmed,
        )


async def _skip_producer_ids(store: MetadataStore, directories: Iterable[Path]) -> None:
    """Raises the next producer id, so that no new producer gets an id that the logs already contain."""
    known = await store.get(PRODUCER_ID_BLOCK_KEY)
    block = None if known is None else decode_entry(known.key, known.value)
    next_id = block.first + block.count if isinstance(block, ProducerIdBlockEntry) else 0
    greatest = max((greatest_producer_id(directory) for directory in directories), default=-1)
    if (
        greatest + 1 >= next_id
    ):  # also without a snapshot, because batches may be newer than the last snapshot
        entry = ProducerIdBlockEntry(-1, greatest + 1, PRODUCER_IDS_SKIPPED)
        await store.txn([], [Put(entry.key, entry.encode())])


def _topics_on_disk(log_dir: Path) -> dict[str, dict[int, Path]]:
    topics: dict[str, dict[int, Path]] = {}
    for found, directory in partition_directories(log_dir).items():
        topics.setdefault(found.topic, {})[found.partition] = directory
    return topics


async def _adopt(
    store: MetadataStore,
    topic: str,
    partitions: Mapping[int, Path],
    node_id: int,
    settings: Mapping[str, str],
) -> None:
    """Writes a topic. The topic's own key comes last, so that an interrupted adoption is repeated."""
    ids = {found for found in map(read_topic_id, partitions.values()) if found is not None}
    if len(ids) > 1:
        raise CorruptFileError(
            f"the partitions of topic {topic} have different topic ids: {sorted(map(str, ids))}"
        )
    topic_id = ids.pop() if ids else uuid.uuid4()
    count = max(partitions) + 1
    entries: list[PartitionStateEntry | TopicConfigEntry | TopicEntry] = [
        PartitionStateEntry(
            topic, index, node_id, _next_epoch(partitions.get(index)), (node_id,), NO_CONTROLLER_EPOCH
        )
        for index in range(count)
    ]
    if settings:
        entries.append(TopicConfigEntry(topic, settings))
    entries.append(TopicEntry(topic, topic_id, tuple((node_id,) for _ in range(count))))
    for start in range(0, len(entries), MAX_TXN_OPERATIONS):
        puts = [Put(entry.key, entry.encode()) for entry in entries[start : start + MAX_TXN_OPERATIONS]]
        await store.txn([Compare.absent(topic_key(topic))], puts)


def _next_epoch(directory: Path | None) -> int:
    return (NO_EPOCH if directory is None else latest_leader_epoch(directory)) + 1
