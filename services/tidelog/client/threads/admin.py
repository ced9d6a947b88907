"""The admin clients for threads and for asyncio: topics, settings, groups and offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from tidelog.client.admin import groups as coordinators
from tidelog.client.admin import topics as admin
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import ConfigChange, ConfigEntry, ConfigResource
from tidelog.client.cluster import Cluster, ClusterView, Topic
from tidelog.client.core.connection_settings import (
    BOOTSTRAP,
    ConnectionSettings,
    Properties,
    parse_settings,
    security_texts,
)
from tidelog.client.security import parse_security
from tidelog.client.shell.tasks import HomeProcess
from tidelog.model.protocol_values import LATEST_TIMESTAMP, ConfigOperation, ConfigResourceType
from tidelog.model.topics import TopicPartition


class Admin:
    """A client for administration. Threads may share it; their calls run one after another.

        with Admin("127.0.0.1:9092") as admin:
            admin.create_topic("flights", num_partitions=6)

    It has the functions of the command `tidelog`. Calls raise KafkaError for an error in a response, and
    ClientError without a response.
    """

    def __init__(self, bootstrap: str = "", settings: Properties | None = None) -> None:
        """`bootstrap` is HOST:PORT,... and precedes `bootstrap.servers`. Connects at the first call. Raises
        SettingsError, SecurityConfigError.
        """
        properties = settings or {}
        self._bootstrap = bootstrap or str(properties.get(BOOTSTRAP, ""))
        self._settings = parse_settings(ConnectionSettings, properties)
        self._security = parse_security(security_texts(properties))
        self._cluster: Cluster | None = None
        self._home = HomeProcess("admin client")
        self._lock = threading.RLock()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._home.is_current:
            return
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None

    def _turn(self) -> AbstractContextManager[bool]:
        """Returns the lock of a call. Raises ClosedError in a forked child, where nobody may release it."""
        self._home.check()
        return self._lock

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(
                self._bootstrap,
                client_id=self._settings.client_id,
                timeout_s=self._settings.request_timeout_ms / 1000,
                security=self._security,
            )
        return self._cluster

    # -- topics

    def describe_cluster(self) -> ClusterView:
        """Returns the brokers and the controller."""
        with self._turn():
            return self._connected().describe()

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """Returns the existing ones of the named topics, None for all."""
        with self._turn():
            return self._connected().topics(names)

    def create_topic(
        self,
        name: str,
        *,
        num_partitions: int = admin.BROKER_DEFAULT,
        replication_factor: int = admin.BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
    ) -> admin.CreatedTopic:
        """Creates a topic and waits until its partitions have leaders. -1 is the broker's default."""
        with self._turn():
            cluster = self._connected()
            created = admin.create_topic(
                cluster,
                name,
                num_partitions=num_partitions,
                replication_factor=replication_factor,
                configs=configs,
            )
            cluster.topic(name, creates=True)
            return created

    def delete_topic(self, name: str) -> None:
        with self._turn():
            admin.delete_topic(self._connected(), name)

    def create_partitions(self, name: str, total_count: int) -> None:
        """Increases the number of partitions to `total_count`."""
        with self._turn():
            admin.create_partitions(self._connected(), name, total_count)

    def offsets(self, topic: str, timestamp: int = LATEST_TIMESTAMP) -> dict[int, int]:
        """Returns for each partition the first offset at or after a time in milliseconds since 1970.

        -1 is the end and -2 the beginning. The offset of a time after the last record is -1.
        """
        with self._turn():
            cluster = self._connected()
            found = list_offsets(cluster, cluster.topic(topic), timestamp)
            return {partition: offset.offset for partition, offset in found.items()}

    # -- settings

    def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Returns the settings of a topic by name."""
        with self._turn():
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            return {entry.name: entry for entry in admin.describe_configs(self._connected(), resource)}

    def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Sets settings of a topic; None removes the topic's own value."""
        self._alter(ConfigResource(ConfigResourceType.TOPIC, topic), changes)

    def alter_group_configs(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        """Sets settings of a group, as `share.auto.offset.reset`; None removes the group's own value."""
        self._alter(ConfigResource(ConfigResourceType.GROUP, group_id), changes)

    def _alter(self, resource: ConfigResource, changes: Mapping[str, str | None]) -> None:
        rows = [
            ConfigChange(name, ConfigOperation.DELETE if value is None else ConfigOperation.SET, value)
            for name, value in changes.items()
        ]
        with self._turn():
            admin.alter_configs(self._connected(), resource, rows)

    # -- groups

    def groups(self) -> list[coordinators.ListedGroup]:
        with self._turn():
            return coordinators.list_groups(self._connected(), [], [])

    def describe_group(self, group_id: str) -> coordinators.Group:
        with self._turn():
            return coordinators.describe_group(self._connected(), group_id)

    def delete_group(self, group_id: str) -> None:
        with self._turn():
            coordinators.delete_group(self._connected(), group_id)

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Returns all offsets that a group has committed."""
        with self._turn():
            return coordinators.committed_offsets(self._connected(), group_id)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets the offsets of a group without members."""
        with self._turn():
            rows = {place: CommittedOffset(offset) for place, offset in offsets.items()}
            commit_offsets(self._connected(), group_id, rows)


class AsyncAdmin:
    """A client for administration on asyncio. `tidelog.aio` exports it as `Admin`.

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topic("flights", num_partitions=6)

    The methods are those of `tidelog.client.Admin`. They run in threads, because they are rare and the client
    blocks. A cancelled call still takes effect.
    """

    def __init__(self, bootstrap: str = "", settings: Properties | None = None) -> None:
        """The parameters are those of `tidelog.client.Admin`."""
        self._admin = Admin(bootstrap, settings)

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._admin.close)

    async def describe_cluster(self) -> ClusterView:
        return await asyncio.to_thread(self._admin.describe_cluster)

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        return await asyncio.to_thread(self._admin.topics, names)

    async def create_topic(
        self,
        name: str,
        *,
        num_partitions: int = admin.BROKER_DEFAULT,
        replication_factor: int = admin.BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
    ) -> admin.CreatedTopic:
        return await asyncio.to_thread(
            self._admin.create_topic,
            name,
            num_partitions=num_partitions,
            replication_factor=replication_factor,
            configs=configs,
        )

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._admin.delete_topic, name)

    async def create_partitions(self, name: str, total_count: int) -> None:
        await asyncio.to_thread(self._admin.create_partitions, name, total_count)

    async def offsets(self, topic: str, timestamp: int = LATEST_TIMESTAMP) -> dict[int, int]:
        return await asyncio.to_thread(self._admin.offsets, topic, timestamp)

    async def topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        return await asyncio.to_thread(self._admin.topic_configs, topic)

    async def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        await asyncio.to_thread(self._admin.alter_topic_configs, topic, changes)

    async def alter_group_configs(self, group_id: str, changes: Mapping[str, str | None]) -> None:
        await asyncio.to_thread(self._admin.alter_group_configs, group_id, changes)

    async def groups(self) -> list[coordinators.ListedGroup]:
        return await asyncio.to_thread(self._admin.groups)

    async def describe_group(self, group_id: str) -> coordinators.Group:
        return await asyncio.to_thread(self._admin.describe_group, group_id)

    async def delete_group(self, group_id: str) -> None:
        await asyncio.to_thread(self._admin.delete_group, group_id)

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        return await asyncio.to_thread(self._admin.committed, group_id)

    async def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        await asyncio.to_thread(self._admin.commit, group_id, offsets)
