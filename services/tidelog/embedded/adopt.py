"""Adopts topics that are in the data directory but not in the metadata, because the metadata was lost.

The names and ids come from the partitions' directories and their `partition.metadata`, and the settings from
the copies in the directories. Nothing is deleted from topics without such copies until an administrator
confirms their settings (ADR 0067). `tidelog adopt` takes over directories of Apache Kafka
(`kafka_adoption.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from tidelog.broker.log.directory_files import read_meta_properties, read_topic_id
from tidelog.broker.log.previous_life import was_used_by_tidelog
from tidelog.embedded.kafka_metadata import METADATA_LOG
from tidelog.embedded.log_survey import (
    broker_settings_of,
    found_broker_settings,
    found_topic_settings,
    greatest_producer_id,
    latest_leader_epoch,
    partition_directories,
    topic_settings_of,
)
from tidelog.log_format.directory import CorruptFileError
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
from tidelog.metadata.file_store import JOURNAL_NAME
from tidelog.metadata.store import MAX_TXN_OPERATIONS, Compare, MetadataStore, Put, StoreError
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.settings.topic_settings import are_confirmed

METADATA_DIRECTORY: Final = "metadata"
NO_CONTROLLER_EPOCH: Final = 0
PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""The number of ids above the greatest one in any producer snapshot that later batches may use."""

_log = structlog.get_logger(__name__)


class NotAdoptedError(StoreError):
    """A data directory that Apache Kafka wrote and that `tidelog adopt` has not taken over."""


def metadata_directory(data_dir: Path) -> Path:
    """Returns the place of the metadata store of a data directory: the directory itself after an adoption,
    because Apache Kafka does not start on a data directory with a directory that is no partition.
    """
    return data_dir if (data_dir / JOURNAL_NAME).exists() else data_dir / METADATA_DIRECTORY


def require_adopted(data_dir: Path, log_dir: Path) -> None:
    """Raises NotAdoptedError if Apache Kafka wrote `log_dir` and there is no metadata store in `data_dir`.
    Changes nothing. Raises CorruptFileError, OSError.
    """
    if not (metadata_directory(data_dir) / JOURNAL_NAME).exists():
        require_own(log_dir)


def require_own(log_dir: Path) -> None:
    """Raises NotAdoptedError if Apache Kafka wrote the directory, CorruptFileError, OSError."""
    is_of_kafka = (log_dir / METADATA_LOG).is_dir()
    if not is_of_kafka and partition_directories(log_dir):
        meta = read_meta_properties(log_dir)
        is_of_kafka = meta is not None and not was_used_by_tidelog(meta)
    if is_of_kafka:
        raise NotAdoptedError(
            f"{log_dir} was written by Apache Kafka, whose metadata has the settings of the topics; nothing "
            f"was changed. 'tidelog adopt {log_dir}' shows what tidelog takes over, and with --execute takes "
            "it over"
        )


async def adopt_topics(store: MetadataStore, log_dir: Path, node_id: int) -> None:
    """Writes the topics of `log_dir` into `store`, except those whose names the store knows.

    Raises OSError, CorruptFileError, StoreError.
    """
    known = {item.key for item in (await store.list_prefix(TOPIC_PREFIX)).items}
    found = {
        topic: partitions
        for topic, partitions in sorted(topics_on_disk(log_dir).items())
        if topic_key(topic) not in known
    }
    if not found:
        return
    await skip_producer_ids(store, [path for partitions in found.values() for path in partitions.values()])
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


async def skip_producer_ids(store: MetadataStore, directories: Iterable[Path], above: int = -1) -> None:
    """Raises the next producer id, so that no new producer gets an id that the logs already contain, or one
    up to `above`.
    """
    known = await store.get(PRODUCER_ID_BLOCK_KEY)
    block = None if known is None else decode_entry(known.key, known.value)
    next_id = block.first + block.count if isinstance(block, ProducerIdBlockEntry) else 0
    greatest = max((greatest_producer_id(directory) for directory in directories), default=-1)
    greatest = max(greatest, above)
    if (
        greatest + 1 >= next_id
    ):  # also without a snapshot, because batches may be newer than the last snapshot
        entry = ProducerIdBlockEntry(-1, greatest + 1, PRODUCER_IDS_SKIPPED)
        await store.txn([], [Put(entry.key, entry.encode())])


def topics_on_disk(log_dir: Path) -> dict[str, dict[int, Path]]:
    """Returns the directories of the partitions of each topic."""
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
    topic_id = topic_id_of(topic, partitions)
    epochs = [next_epoch(partitions.get(index)) for index in range(max(partitions) + 1)]
    entry = TopicEntry(topic, topic_id, ((node_id,),) * len(epochs))
    await write_topic(store, entry, epochs, settings)


def topic_id_of(topic: str, partitions: Mapping[int, Path]) -> uuid.UUID:
    """Returns the id in the directories of a topic's partitions, a new one if they have none. Raises
    CorruptFileError, OSError.
    """
    ids = {found for found in map(read_topic_id, partitions.values()) if found is not None}
    if len(ids) > 1:
        raise CorruptFileError(
            f"the partitions of topic {topic} have different topic ids: {sorted(map(str, ids))}"
        )
    return ids.pop() if ids else uuid.uuid4()


async def write_topic(
    store: MetadataStore, topic: TopicEntry, epochs: Sequence[int], configs: Mapping[str, str]
) -> None:
    """Writes a topic whose partitions have one replica each and start with these leader epochs. The topic's
    own key comes last, so that an interrupted adoption is repeated. Raises StoreError.
    """
    entries: list[PartitionStateEntry | TopicConfigEntry | TopicEntry] = [
        PartitionStateEntry(topic.name, index, replicas[0], epoch, replicas, NO_CONTROLLER_EPOCH)
        for index, (replicas, epoch) in enumerate(zip(topic.assignments, epochs, strict=True))
    ]
    if configs:
        entries.append(TopicConfigEntry(topic.name, configs))
    entries.append(topic)
    for start in range(0, len(entries), MAX_TXN_OPERATIONS):
        puts = [Put(entry.key, entry.encode()) for entry in entries[start : start + MAX_TXN_OPERATIONS]]
        await store.txn([Compare.absent(topic_key(topic.name))], puts)


def next_epoch(directory: Path | None) -> int:
    """Returns the first leader epoch that no batch of a partition has. Raises CorruptFileError, OSError."""
    return (UNKNOWN_EPOCH if directory is None else latest_leader_epoch(directory)) + 1
