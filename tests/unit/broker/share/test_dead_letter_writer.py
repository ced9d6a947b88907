"""Batches of a broker for its own partitions and for those of other brokers, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerlab.replicating_brokers import ReplicatingBroker, ReplicatingCluster, until
from tidelog.broker.share.dead_letter_writer import DeadLetterWriter
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

DEAD = TopicPartition("dlq.t", 0)
SASL = {
    "listeners": "BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.jaas.config": 'LoginModule required username="b" password="secret" user_b="secret";',
}


def batch(value: bytes = b"dead") -> bytearray:
    return build_batch([Record(0, 1_700_000_000_000, None, value)])


@asynccontextmanager
async def writing(node: ReplicatingBroker) -> AsyncIterator[DeadLetterWriter]:
    parts = node.broker
    writer = DeadLetterWriter(
        parts.identity.broker_id,
        parts.current_settings,
        parts.metadata,
        parts.hosted,
        parts.waiting.produce,
        parts.clock,
        parts.timer,
        parts.record_walks,
        parts.fetchers.endpoint_of,
    )
    try:
        yield writer
    finally:
        await writer.close()


@pytest.mark.parametrize("settings", [{}, SASL], ids=["plaintext", "sasl"])
@pytest.mark.parametrize("leader", [1, 2])
def test_a_batch_is_written_when_all_replicas_have_it(
    tmp_path: Path, leader: int, settings: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path, settings=settings) as cluster:
            await cluster.elect("dlq.t", leader, 0)
            replica = cluster.brokers[leader].replica(DEAD)
            async with writing(cluster.brokers[1]) as writer:
                await writer.write("dlq.t", 0, batch())
                await until(lambda: len(replica.core.in_sync_replicas) == 2)
                await asyncio.gather(*(writer.write("dlq.t", 0, batch()) for _ in range(20)))
            assert replica.core.high_watermark == 21
            assert cluster.end_offset(3 - leader, DEAD) == 21

    asyncio.run(scenario())


def test_the_error_of_the_leader_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("dlq.t", 2, 0, configs={"max.message.bytes": "200"})
            async with writing(cluster.brokers[1]) as writer:
                with pytest.raises(KafkaError) as refused:
                    await writer.write("dlq.t", 0, batch(bytes(500)))
                assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
                with pytest.raises(KafkaError) as unknown:
                    await writer.write("dlq.other", 0, batch())
                assert unknown.value.code is ErrorCode.LEADER_NOT_AVAILABLE

    asyncio.run(scenario())


def test_a_write_fails_when_the_leader_goes_away_and_succeeds_when_it_is_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("dlq.t", 2, 0, isr=(2,))
            async with writing(cluster.brokers[1]) as writer:
                await writer.write("dlq.t", 0, batch())
                await cluster.brokers[2].go_dark()
                waiting = asyncio.create_task(writer.write("dlq.t", 0, batch()))
                await asyncio.sleep(0.05)
                await cluster.brokers[2].come_back()
                await cluster.show_brokers()
                try:
                    await waiting  # it waits for a connection, unless the old one has just broken
                except KafkaError as error:
                    assert error.code is ErrorCode.NETWORK_EXCEPTION
                await writer.write("dlq.t", 0, batch())
                assert cluster.end_offset(2, DEAD) >= 2

    asyncio.run(scenario())


def test_a_batch_that_waits_fails_with_the_leadership(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("dlq.t", 1, 0, isr=(1, 2), told=(1,))  # broker 2 does not fetch
            async with writing(cluster.brokers[1]) as writer:
                waiting = asyncio.create_task(writer.write("dlq.t", 0, batch()))
                await until(lambda: cluster.end_offset(1, DEAD) == 1)
                await cluster.elect("dlq.t", 2, 1, isr=(1, 2))
                with pytest.raises(KafkaError) as refused:
                    await waiting
                assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())
