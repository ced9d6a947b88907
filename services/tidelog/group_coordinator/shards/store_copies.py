"""The copies of keys of the metadata store that a coordinator keeps: the cluster, and settings that change.

A copy lists its keys and then watches them. While the store is unavailable, the copy stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from tidelog.group_coordinator.shard_core import ClusterImage, TopicImage
from tidelog.kernel.slices import TaskSet
from tidelog.metadata.entries import (
    BROKER_CONFIG_PREFIX,
    BROKER_PREFIX,
    BROKERS_AND_TOPICS_PREFIX,
    GROUP_CONFIG_PREFIX,
    TOPIC_PREFIX,
    BrokerConfigEntry,
    BrokerEntry,
    Entry,
    GroupConfigEntry,
    InvalidEntryError,
    PartitionStateEntry,
    TopicEntry,
    broker_config_key,
    decode_entry,
    group_config_key,
    parse_partition_state_key,
    topic_key,
)
from tidelog.metadata.store import (
    CompactedError,
    Listing,
    MetadataStore,
    StoreError,
    StoreUnavailableError,
    WatchBatch,
)
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardKind
from tidelog.model.topics import TopicPartition
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError

RETRY_MS: Final = 500
_NO_OVERRIDES: Final[Mapping[str, str]] = {}
_CLUSTER_WIDE_KEY: Final = broker_config_key("")

_log = structlog.get_logger(__name__)


def _decoded(key: str, value: bytes) -> Entry | None:
    """Returns the entry of a key, or None if its value is not valid, which is logged."""
    try:
        return decode_entry(key, value)
    except InvalidEntryError as error:
        _log.warning(
            "a key of the metadata store is ignored because its value is not valid", reason=str(error)
        )
        return None


class StoreFollower:
    """Calls `on_listing` at the start and after each gap of the watch, and `on_batch` with each later change.

    While the store is unavailable, it makes no calls.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        on_listing: Callable[[Listing], None],
        on_batch: Callable[[WatchBatch], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._on_listing = on_listing
        self._on_batch = on_batch
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first listing. Raises StoreUnavailableError."""
        listing = await self._store.list_prefix(self._prefix)
        self._on_listing(listing)
        self._task = asyncio.create_task(self._follow(listing.revision), name=f"follow {self._prefix}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, revision: int) -> None:
        while True:
            try:
                await self._watch(revision + 1)
            except (CompactedError, StoreUnavailableError) as error:
                _log.warning(
                    "keys of the metadata store are listed again", prefix=self._prefix, reason=str(error)
                )
            except Exception:  # noqa: BLE001 - a bug must not end the task: list again
                _log.exception("following the metadata store failed and starts again", prefix=self._prefix)
            revision = await self._list_again()

    async def _list_again(self) -> int:
        """Returns the revision of a new listing."""
        while True:
            await asyncio.sleep(RETRY_MS / 1000)
            try:
                listing = await self._store.list_prefix(self._prefix)
                self._on_listing(listing)
            except StoreUnavailableError:
                continue
            except Exception:  # noqa: BLE001 - a bug must not end the task: list again
                _log.exception("a listing of the metadata store can't be applied", prefix=self._prefix)
                continue
            return listing.revision

    async def _watch(self, start_revision: int) -> None:
        watch = self._store.watch(self._prefix, start_revision)
        try:
            async for batch in watch:
                self._on_batch(batch)
        finally:
            await watch.aclose()


class Leader(NamedTuple):
    broker_id: int
    """-1 if the partition has no leader at the moment."""
    leader_epoch: int


class ClusterListener(Protocol):
    """Receives a call after each change of the view."""

    def cluster_listed(self) -> None: ...

    def cluster_changed(self, batch: WatchBatch) -> None: ...


class ClusterView:
    """The brokers, the topics and the partitions' leaders: a copy of the keys below `/brokers/`."""

    _listener: ClusterListener

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._follower = StoreFollower(
            store, BROKERS_AND_TOPICS_PREFIX, on_listing=self._listed, on_batch=self._changed
        )
        self._lookups: TaskSet[None] = TaskSet()
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
            self._lookups.start(self._look_up_topic(topic, answer))

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
        entry = _decoded(key, value)
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


class FollowedSettings:
    """The settings that follow the store: the cluster-wide ones, and those that groups override.

    The settings of single brokers do not concern a coordinator. Only settings of groups follow changes; the
    coordinator reads the others when it starts.
    """

    def __init__(self, store: MetadataStore, settings: BrokerSettings) -> None:
        self.current = settings
        """The coordinator's settings with the cluster-wide dynamic ones."""
        self._of_groups: dict[str, Mapping[str, str]] = {}
        self._followers = (
            StoreFollower(
                store, GROUP_CONFIG_PREFIX, on_listing=self._groups_listed, on_batch=self._groups_changed
            ),
            StoreFollower(
                store, BROKER_CONFIG_PREFIX, on_listing=self._brokers_listed, on_batch=self._brokers_changed
            ),
        )

    async def start(self) -> None:
        """Raises StoreUnavailableError."""
        for follower in self._followers:
            await follower.start()

    async def stop(self) -> None:
        for follower in self._followers:
            await follower.stop()

    def overrides_of(self, group_id: str) -> Mapping[str, str]:
        """Returns the texts of the settings that a group overrides."""
        if not self._of_groups:
            return _NO_OVERRIDES
        return self._of_groups.get(group_config_key(group_id), _NO_OVERRIDES)

    def _groups_listed(self, listing: Listing) -> None:
        self._of_groups.clear()
        for item in listing.items:
            self._take_group(item.key, item.value)

    def _groups_changed(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._take_group(event.key, event.value)

    def _take_group(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._of_groups.pop(key, None)
            return
        entry = _decoded(key, value)
        if isinstance(entry, GroupConfigEntry):
            self._of_groups[key] = entry.configs

    def _brokers_listed(self, listing: Listing) -> None:
        values = {item.key: item.value for item in listing.items}
        self._take_cluster_wide(values.get(_CLUSTER_WIDE_KEY))

    def _brokers_changed(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.key == _CLUSTER_WIDE_KEY:
                self._take_cluster_wide(event.value)

    def _take_cluster_wide(self, value: bytes | None) -> None:
        configs: Mapping[str, str] = {}
        try:
            if value is not None:
                entry = decode_entry(_CLUSTER_WIDE_KEY, value)
                if isinstance(entry, BrokerConfigEntry):
                    configs = entry.configs
            self.current = self.current.with_dynamic(dynamic_default=configs, dynamic={})
        except (InvalidEntryError, SettingError) as error:
            _log.error("cluster-wide settings are not applied", reason=str(error))
