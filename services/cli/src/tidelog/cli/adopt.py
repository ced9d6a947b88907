"""Topics that lie in the data directory but that no metadata knows: a directory written by Apache Kafka, or
metadata that was lost.

Names and ids come from the partitions' directories and their `partition.metadata`; settings of topics
stood elsewhere and are lost, so the defaults hold, but the internal topics are compacted.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.log_directory import NOT_OF_BROKERS
from tidelog.broker.log.partition_directory import LEADER_EPOCHS_FILE, parse_partition_directory_name
from tidelog.broker.log.partition_metadata import read_topic_id
from tidelog.broker.partition.leader_epochs import CorruptLeaderEpochsError, LeaderEpochs
from tidelog.metadata import keys
from tidelog.metadata.entries import PartitionStateEntry, TopicConfigEntry, TopicEntry
from tidelog.metadata.store import MAX_TXN_OPERATIONS, Compare, MetadataStore, Put
from tidelog.model.topics import INTERNAL_TOPICS

NO_CONTROLLER_EPOCH: Final = 0

_log = structlog.get_logger(__name__)


async def adopt_topics(store: MetadataStore, log_dir: Path, node_id: int) -> None:
    """Write what `log_dir` holds into `store`, where a topic of that name isn't known. Raises OSError,
    CorruptFileError, StoreError.
    """
    known = {item.key for item in (await store.list_prefix(keys.TOPICS)).items}
    for topic, partitions in sorted(_topics_on_disk(log_dir).items()):
        if keys.topic(topic) not in known:
            await _adopt(store, topic, partitions, node_id)
            _log.info("topic adopted from the data directory", topic=topic, partitions=len(partitions))


def _topics_on_disk(log_dir: Path) -> dict[str, dict[int, Path]]:
    topics: dict[str, dict[int, Path]] = {}
    if not log_dir.is_dir():
        return topics
    for entry in log_dir.iterdir():
        found = parse_partition_directory_name(entry.name)
        if found is not None and entry.is_dir() and found.topic not in NOT_OF_BROKERS:
            topics.setdefault(found.topic, {})[found.partition] = entry
    return topics


async def _adopt(store: MetadataStore, topic: str, partitions: Mapping[int, Path], node_id: int) -> None:
    """The topic's own key is written last: until then the next start begins again."""
    ids = {found for found in map(read_topic_id, partitions.values()) if found is not None}
    if len(ids) > 1:
        raise CorruptFileError(
            f"the partitions of topic {topic} have different topic ids: {sorted(map(str, ids))}"
        )
    topic_id = ids.pop() if ids else uuid.uuid4()
    count = max(partitions) + 1
    entries: list[PartitionStateEntry | TopicConfigEntry | TopicEntry] = [
        PartitionStateEntry(
            topic, index, node_id, _latest_epoch(partitions.get(index)) + 1, (node_id,), NO_CONTROLLER_EPOCH
        )
        for index in range(count)
    ]
    if topic in INTERNAL_TOPICS:
        entries.append(TopicConfigEntry(topic, {"cleanup.policy": "compact"}))
    entries.append(TopicEntry(topic, topic_id, tuple((node_id,) for _ in range(count))))
    for start in range(0, len(entries), MAX_TXN_OPERATIONS):
        puts = [Put(entry.key, entry.encode()) for entry in entries[start : start + MAX_TXN_OPERATIONS]]
        await store.txn([Compare.absent(keys.topic(topic))], puts)


def _latest_epoch(directory: Path | None) -> int:
    if directory is None:
        return -1
    try:
        return LeaderEpochs.decode((directory / LEADER_EPOCHS_FILE).read_bytes()).latest_epoch
    except FileNotFoundError:
        return -1
    except CorruptLeaderEpochsError as error:
        raise CorruptFileError(f"{directory / LEADER_EPOCHS_FILE}: {error}") from error
