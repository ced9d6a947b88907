"""Topics, assignments and leaders as brokers' directories tell of them, for a store that was lost. No I/O.

The leader becomes the replica that has come furthest, by (leader epoch of its last batch, log end offset): it
holds all that was committed, since whoever was in sync in that epoch holds it. In sync are those that have
come just as far; the others truncate to it and catch up. All begin a leader epoch above any that was seen.
Settings of topics stood in the store alone: the defaults hold, except that internal topics are compacted.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.cli.log_survey import NO_EPOCH, FoundReplica
from tidelog.metadata.entries import PartitionStateEntry, TopicConfigEntry, TopicEntry
from tidelog.model.topics import INTERNAL_TOPICS

NO_CONTROLLER_EPOCH: Final = 0


class RebuiltTopic(NamedTuple):
    """`entry` is to be written last. `missing` are partitions of which there is no replica anywhere: they
    come back empty. `left_out` are brokers with a replica of another topic of that name, deleted since.
    """

    entry: TopicEntry
    states: tuple[PartitionStateEntry, ...]
    config: TopicConfigEntry | None
    missing: tuple[int, ...]
    left_out: tuple[int, ...]


def rebuild_topics(
    found: Mapping[int, Sequence[FoundReplica]], *, new_topic_id: uuid.UUID
) -> list[RebuiltTopic]:
    """`found` by broker id. `new_topic_id` seeds the ids of topics whose own is not on any disk."""
    by_topic: dict[str, dict[int, list[FoundReplica]]] = {}
    for broker_id, replicas in found.items():
        for replica in replicas:
            by_topic.setdefault(replica.topic_partition.topic, {}).setdefault(broker_id, []).append(replica)
    return [
        _rebuild(topic, by_broker, uuid.uuid5(new_topic_id, topic))
        for topic, by_broker in sorted(by_topic.items())
    ]


def _rebuild(topic: str, by_broker: Mapping[int, list[FoundReplica]], otherwise: uuid.UUID) -> RebuiltTopic:
    topic_id = _topic_id(by_broker) or otherwise
    partitions: dict[int, dict[int, FoundReplica]] = {}
    left_out: set[int] = set()
    for broker_id, replicas in by_broker.items():
        for replica in replicas:
            if replica.topic_id in (topic_id, None):
                partitions.setdefault(replica.topic_partition.partition, {})[broker_id] = replica
            else:
                left_out.add(broker_id)
    count = max(partitions) + 1
    everywhere = sorted({broker_id for replicas in partitions.values() for broker_id in replicas})
    states: list[PartitionStateEntry] = []
    assignments: list[tuple[int, ...]] = []
    for index in range(count):
        here = partitions.get(index, {})
        assignments.append(_rotated(sorted(here) or everywhere, index))
        states.append(_state(topic, index, here, assignments[-1]))
    return RebuiltTopic(
        TopicEntry(topic, topic_id, tuple(assignments)),
        tuple(states),
        TopicConfigEntry(topic, {"cleanup.policy": "compact"}) if topic in INTERNAL_TOPICS else None,
        tuple(index for index in range(count) if index not in partitions),
        tuple(sorted(left_out)),
    )


def _topic_id(by_broker: Mapping[int, list[FoundReplica]]) -> uuid.UUID | None:
    """That of most brokers: one that was away while a topic was deleted and made again has the old one."""
    ids_of_brokers = ({replica.topic_id for replica in replicas} for replicas in by_broker.values())
    counts = Counter(topic_id for ids in ids_of_brokers for topic_id in ids if topic_id is not None)
    return max(counts, key=lambda topic_id: (counts[topic_id], topic_id.int)) if counts else None


def _rotated(broker_ids: Sequence[int], index: int) -> tuple[int, ...]:
    """The first one is the preferred leader; which it was, nobody knows any more, so they take turns."""
    turn = index % len(broker_ids)
    return (*broker_ids[turn:], *broker_ids[:turn])


def _state(
    topic: str, index: int, replicas: Mapping[int, FoundReplica], assignment: tuple[int, ...]
) -> PartitionStateEntry:
    latest_epoch = max((replica.latest_epoch for replica in replicas.values()), default=NO_EPOCH)
    furthest = max((replica.end for replica in replicas.values()), default=None)
    in_sync = tuple(b for b in assignment if b not in replicas or replicas[b].end == furthest)
    return PartitionStateEntry(
        topic, index, in_sync[0], latest_epoch + 1, in_sync, NO_CONTROLLER_EPOCH, (), in_sync[0]
    )
