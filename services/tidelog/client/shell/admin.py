"""The admin client on asyncio. Its calls run in threads, because they are rare and the client blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType

from tidelog.client.admin import groups as coordinators
from tidelog.client.admin import topics as admin
from tidelog.client.admin.topics import ConfigEntry
from tidelog.client.cluster import ClusterView, Topic
from tidelog.client.core.connection_settings import Properties
from tidelog.client.threads.admin import Admin as ThreadAdmin
from tidelog.model.protocol_values import LATEST_TIMESTAMP
from tidelog.model.topics import TopicPartition


class Admin:
    """A client for administration.

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topic("flights", num_partitions=6)

    The methods are those of `tidelog.client.Admin`. A cancelled call still takes effect.
    """

    def __init__(self, bootstrap: str = "", settings: Properties | None = None) -> None:
        """The parameters are those of `tidelog.client.Admin`."""
        self._admin = ThreadAdmin(bootstrap, settings)

    async def __aenter__(self) -> Admin:
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
