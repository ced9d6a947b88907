"""The cluster as a coordinator sees it in the metadata store: brokers, topics, who leads what.

A copy of `/brokers/`, kept by one watch. Where the store is away it stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import structlog

from tidelog.group_coordinator.shard_core import ClusterImage, TopicImage
from tidelog.metadata.entries import (
    BROKER_PREFIX,
    TOPIC_PREFIX,
    BrokerEntry,
    InvalidEntryError,
    PartitionStateEntry,
    TopicEntry,
    decode_entry,
    parse_partition_state_key,
)
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition

BROKERS_AND_TOPICS = "/brokers/"

_log = structlog.get_logger(__name__)


class Leader(NamedTuple):
    broker_id: int
    """-1: none at the moment."""
    leader_epoch: int


class ClusterView:
    """`take` each change, then look; `image` is made anew only after topics have changed."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        self._racks: dict[int, str] = {}  # also of brokers that are away: they come back
        self._is_image_stale = True
        self._image = ClusterImage(0, MappingProxyType({}), MappingProxyType({}))

    def shard_count(self, kind: ShardKind) -> int:
        """0 until somebody has asked for the topic."""
        topic = self.topics.get(kind.topic)
        return 0 if topic is None else len(topic.assignments)

    def leader(self, partition: TopicPartition) -> Leader | None:
        return self.leaders.get(partition)

    def replace(self, items: Iterable[tuple[str, bytes, int]]) -> None:
        """Everything anew: (key, value, create_revision) of all keys."""
        self.brokers.clear()
        self.topics.clear()
        self.leaders.clear()
        self._is_image_stale = True
        for key, value, create_revision in items:
            self.take(key, value, create_revision)

    def take(self, key: str, value: bytes | None, create_revision: int) -> None:
        """One key was put, or (value None) deleted."""
        if value is None:
            self._forget(key)
            return
        try:
            entry = decode_entry(key, value)
        except InvalidEntryError as error:
            _log.warning("a key is not what it should be", reason=str(error))
            return
        if isinstance(entry, PartitionStateEntry):
            self.leaders[TopicPartition(entry.topic, entry.partition)] = Leader(
                entry.leader, entry.leader_epoch
            )
        elif isinstance(entry, TopicEntry):
            self.topics[entry.name] = entry
            self._is_image_stale = True
        elif isinstance(entry, BrokerEntry):
            self.brokers[entry.broker_id] = BrokerRegistration(
                entry.broker_id,
                create_revision,
                entry.endpoints,
                entry.rack,
                entry.rpc_address,
            )
            if entry.rack is not None and self._racks.get(entry.broker_id) != entry.rack:
                self._racks[entry.broker_id] = entry.rack
                self._is_image_stale = True

    def _forget(self, key: str) -> None:
        partition = parse_partition_state_key(key)
        if partition is not None:
            self.leaders.pop(TopicPartition(*partition), None)
        elif key.startswith(TOPIC_PREFIX):
            if self.topics.pop(key[len(TOPIC_PREFIX) :], None) is not None:
                self._is_image_stale = True
        elif key.startswith(BROKER_PREFIX) and key[len(BROKER_PREFIX) :].isdecimal():
            self.brokers.pop(int(key[len(BROKER_PREFIX) :]), None)

    def image(self) -> ClusterImage:
        if self._is_image_stale:
            self._is_image_stale = False
            topics = {name: self._topic_image(topic) for name, topic in self.topics.items()}
            names: dict[UUID, str] = {topic.topic_id: name for name, topic in self.topics.items()}
            self._image = ClusterImage(
                self._image.version + 1, MappingProxyType(topics), MappingProxyType(names)
            )
        return self._image

    def _topic_image(self, topic: TopicEntry) -> TopicImage:
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(self._racks[replica] for replica in replicas if replica in self._racks)
                for replicas in topic.assignments
            )
        return TopicImage(topic.topic_id, topic.name, len(topic.assignments), racks)
