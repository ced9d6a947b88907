"""The coordinator's view of the cluster: the brokers, the topics and the partitions' leaders.

The view is a copy of the metadata store's keys below `/brokers/`. While the store is unavailable, the view
stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple, Protocol
from uuid import UUID

import structlog

from tidelog.group_coordinator.shard_core import ClusterImage, TopicImage
from tidelog.group_coordinator.shards.store_follower import StoreFollower
from tidelog.metadata.entries import (
    BROKER_PREFIX,
    BROKERS_AND_TOPICS_PREFIX,
    TOPIC_PREFIX,
    BrokerEntry,
    InvalidEntryError,
    PartitionStateEntry,
    TopicEntry,
    decode_entry,
    parse_partition_state_key,
    topic_key,
)
from tidelog.metadata.store import Listing, MetadataStore, StoreError, WatchBatch
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition

_log = structlog.get_logger(__name__)


class Leader(NamedTuple):
    broker_id: int
    """-1 if the partition has no leader at the moment."""
    leader_epoch: int


class ClusterListener(Protocol):
    """Receives a call after each change of the view."""

    def cluster_listed(self) -> None: ...

    def cluster_changed(self, batch: WatchBatch) -> None: ...


class ClusterView:
    """A copy of the keys. `start` reads it, and a watch keeps it current until `stop`."""

    _listener: ClusterListener

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._follower = StoreFollower(
            store, BROKERS_AND_TOPICS_PREFIX, on_listing=self._listed, on_batch=self._changed
        )
        self._lookups: set[asyncio.Task[None]] = set()
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        self._racks: dict[int, str] = {}
        """The racks of all brokers ever seen, because brokers that are down come back."""
        self._topic_images: dict[str, TopicImage] = {}
        """The image of each topic that has not changed since."""
        self._is_image_stale = True
        self._image = ClusterImage(0, MappingProxyType({}), MappingProxyType({}))

    async def start(self, listener: ClusterListener) -> None:
        """Raises StoreUnavailableError."""
        self._listener = listener
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()
        for lookup in list(self._lookups):
            lookup.cancel()

    def shard_count(self, kind: ShardKind) -> int:
        """Returns 0 until the topic is created, which its first use does."""
        topic = self.topics.get(kind.topic)
        return 0 if topic is None else len(topic.assignments)

    def leader(self, partition: TopicPartition) -> Leader | None:
        return self.leaders.get(partition)

    def is_topic_gone(self, topic: str, answer: Callable[[bool | None], None]) -> None:
        """Calls `answer` with whether the topic is deleted, or with None if the store is unavailable.

        A topic that is missing in the view is looked up in the store, because the view may be behind.
        """
        if topic in self.topics:
            answer(False)
        else:
            task = asyncio.create_task(self._look_up_topic(topic, answer))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)

    async def _look_up_topic(self, topic: str, answer: Callable[[bool | None], None]) -> None:
        try:
            is_gone = await self._store.get(topic_key(topic)) is None
        except StoreError:
            answer(None)
        else:
            answer(is_gone)

    def _listed(self, listing: Listing) -> None:
        known = self.topics.copy()
        self.brokers.clear()
        self.topics.clear()
        self.leaders.clear()
        self._topic_images.clear()
        self._is_image_stale = True
        for item in listing.items:
            self._take(item.key, item.value, item.create_revision)
            name = item.key.removeprefix(TOPIC_PREFIX)
            if name in known and name not in self.topics:  # its value is not valid, but it was not deleted
                self.topics[name] = known[name]
        self._listener.cluster_listed()

    def _changed(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._take(event.key, event.value, event.create_revision)
        self._listener.cluster_changed(batch)

    def _take(self, key: str, value: bytes | None, create_revision: int) -> None:
        """Applies the change of one key. `value` is None if the key was deleted."""
        if value is None:
            self._forget(key)
            return
        try:
            entry = decode_entry(key, value)
        except InvalidEntryError as error:
            _log.warning(
                "a key of the metadata store is ignored because its value is not valid", reason=str(error)
            )
            return
        if isinstance(entry, PartitionStateEntry):
            self.leaders[TopicPartition(entry.topic, entry.partition)] = Leader(
                entry.leader, entry.leader_epoch
            )
        elif isinstance(entry, TopicEntry):
            self.topics[entry.name] = entry
            self._topic_images.pop(entry.name, None)
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
                self._topic_images.clear()
                self._is_image_stale = True

    def _forget(self, key: str) -> None:
        partition = parse_partition_state_key(key)
        if partition is not None:
            self.leaders.pop(TopicPartition(*partition), None)
        elif key.startswith(TOPIC_PREFIX):
            name = key[len(TOPIC_PREFIX) :]
            if self.topics.pop(name, None) is not None:
                self._topic_images.pop(name, None)
                self._is_image_stale = True
        elif key.startswith(BROKER_PREFIX) and key[len(BROKER_PREFIX) :].isdecimal():
            self.brokers.pop(int(key[len(BROKER_PREFIX) :]), None)

    def image(self) -> ClusterImage:
        """Returns the view for cores. It is built again only after a change of topics or racks."""
        if self._is_image_stale:
            self._is_image_stale = False
            images = self._topic_images
            for name, topic in self.topics.items():
                if name not in images:
                    images[name] = self._topic_image(topic)
            names: dict[UUID, str] = {topic.topic_id: name for name, topic in self.topics.items()}
            self._image = ClusterImage(
                self._image.version + 1, MappingProxyType(images.copy()), MappingProxyType(names)
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
