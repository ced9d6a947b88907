"""Rebuilds topics, assignments and leaders from the contents of brokers' directories. No I/O.

The replica that is furthest ahead becomes the leader, by (leader epoch of its last batch, log end offset). It
holds all committed records, because every replica that was in sync in that epoch holds them. Replicas with
the same end are in sync. The others truncate to the leader's log and catch up. The new leader epoch is
greater than all known epochs. The settings of topics come from the copies beside their partitions.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.embedded.found_settings import found_topic_settings
from tidelog.embedded.log_survey import FoundReplica
from tidelog.metadata.entries import PartitionStateEntry, TopicConfigEntry, TopicEntry
from tidelog.model.protocol_values import UNKNOWN_EPOCH

NO_CONTROLLER_EPOCH: Final = 0


class RebuiltTopic(NamedTuple):
    """A rebuilt topic.

    `entry` must be written last. `missing` are the partitions without any replica, which will be empty.
    `left_out` are the brokers with a replica of a deleted topic of the same name.
    """

    entry: TopicEntry
    states: tuple[PartitionStateEntry, ...]
    config: TopicConfigEntry | None
    missing: tuple[int, ...]
    left_out: tuple[int, ...]


def rebuild_topics(
    found: Mapping[int, Sequence[FoundReplica]], *, new_topic_id: uuid.UUID, are_defaults_known: bool
) -> list[RebuiltTopic]:
    """Rebuilds all topics.

    `found` holds the replicas by broker id. `new_topic_id` seeds the ids of topics whose ids are on no disk.
    `are_defaults_known` says whether the settings are known that topics inherit from brokers.
    """
    by_topic: dict[str, dict[int, list[FoundReplica]]] = {}
    for broker_id, replicas in found.items():
        for replica in replicas:
            by_topic.setdefault(replica.topic_partition.topic, {}).setdefault(broker_id, []).append(replica)
    return [
        _rebuild(topic, by_broker, uuid.uuid5(new_topic_id, topic), are_defaults_known)
        for topic, by_broker in sorted(by_topic.items())
    ]


def _rebuild(
    topic: str,
    by_broker: Mapping[int, list[FoundReplica]],
    otherwise: uuid.UUID,
    are_defaults_known: bool,
) -> RebuiltTopic:
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
    settings = found_topic_settings(
        topic,
        [replica.settings for replicas in partitions.values() for replica in replicas.values()],
        replicas=max(map(len, assignments)),
        are_defaults_known=are_defaults_known,
    )
    return RebuiltTopic(
        TopicEntry(topic, topic_id, tuple(assignments)),
        tuple(states),
        TopicConfigEntry(topic, settings) if settings else None,
        tuple(index for index in range(count) if index not in partitions),
        tuple(sorted(left_out)),
    )


def _topic_id(by_broker: Mapping[int, list[FoundReplica]]) -> uuid.UUID | None:
    """Returns the topic id that most brokers have.

    A broker that was down while the topic was deleted and created again has the old id.
    """
    ids_of_brokers = ({replica.topic_id for replica in replicas} for replicas in by_broker.values())
    counts = Counter(topic_id for ids in ids_of_brokers for topic_id in ids if topic_id is not None)
    return max(counts, key=lambda topic_id: (counts[topic_id], topic_id.int)) if counts else None


def _rotated(broker_ids: Sequence[int], index: int) -> tuple[int, ...]:
    """Returns the replicas in rotation, because the previous preferred leader, the first one, is unknown."""
    turn = index % len(broker_ids)
    return (*broker_ids[turn:], *broker_ids[:turn])


def _state(
    topic: str, index: int, replicas: Mapping[int, FoundReplica], assignment: tuple[int, ...]
) -> PartitionStateEntry:
    latest_epoch = max((replica.latest_epoch for replica in replicas.values()), default=UNKNOWN_EPOCH)
    furthest = max((replica.end for replica in replicas.values()), default=None)
    in_sync = tuple(b for b in assignment if b not in replicas or replicas[b].end == furthest)
    return PartitionStateEntry(
        topic, index, in_sync[0], latest_epoch + 1, in_sync, NO_CONTROLLER_EPOCH, (), in_sync[0]
    )
