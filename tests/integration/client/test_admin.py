"""The admin client against real brokers."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tidelog.aio import Admin, Producer, TopicPartition
from tidelog.client import Admin as ThreadAdmin
from tidelog.model.errors import ErrorCode, KafkaError

pytestmark = pytest.mark.integration


def test_topics_settings_and_groups(served: str) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"

    async def run() -> None:
        async with Admin(served) as admin:
            created = await admin.create_topic(name, num_partitions=2, configs={"retention.ms": "1000000"})
            assert created.num_partitions == 2
            with pytest.raises(KafkaError) as refused:
                await admin.create_topic(name)
            assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
            async with Producer[bytes, bytes](served) as producer:
                await producer.send(name, b"v", partition=1)
            assert await admin.offsets(name) == {0: 0, 1: 1}
            assert (await admin.topic_configs(name))["retention.ms"].value == "1000000"
            await admin.alter_topic_configs(name, {"retention.ms": None, "segment.bytes": "2000000"})
            assert not (await admin.topic_configs(name))["retention.ms"].is_dynamic
            await admin.create_partitions(name, 3)
            assert len((await admin.topics([name]))[name].partitions) == 3
            place = TopicPartition(name, 1)
            await admin.commit(name, {place: 1})
            assert await admin.committed(name) == {place: 1}
            assert name in [group.group_id for group in await admin.groups()]
            await admin.delete_group(name)
            await admin.delete_topic(name)
            assert (await admin.describe_cluster()).brokers

    asyncio.run(run())
    with ThreadAdmin(served) as admin:
        assert name not in admin.topics([name])
