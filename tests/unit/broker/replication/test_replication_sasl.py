"""Followers log in to their leaders with SASL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from brokerlab.replicating_brokers import ReplicatingCluster, append_to, until
from tidelog.broker.security.security_snapshot import SecuritySnapshot
from tidelog.metadata.entries import ScramCredentialEntry
from tidelog.model.topics import TopicPartition
from tidelog.sasl.scram import MECHANISM_BY_NAME, new_credential

T0 = TopicPartition("t", 0)
MODULE = "LoginModule required"
LISTENER = {
    "listeners": "BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


def _settings(mechanism: str, password: str = "secret") -> dict[str, str]:
    return LISTENER | {
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.jaas.config": f'{MODULE} username="broker" password="{password}" user_broker="secret";',
    }


def _add_users(cluster: ReplicatingCluster) -> None:
    entries = [
        ScramCredentialEntry("broker", mechanism.name, new_credential(mechanism, "secret", b"salt"))
        for mechanism in MECHANISM_BY_NAME.values()
    ]
    for node in cluster.brokers.values():
        node.broker.metadata.security = SecuritySnapshot(
            scram_credentials={entry.key: entry for entry in entries}
        )


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISM_BY_NAME])
def test_a_follower_logs_in_and_replicates(tmp_path: Path, mechanism: str) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path, settings=_settings(mechanism)) as cluster:
            _add_users(cluster)
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0, records=3)
            await cluster.level(T0, 1)
            leader = cluster.brokers[1].replica(T0)
            await until(lambda: leader.core.in_sync_replicas == (1, 2))

    asyncio.run(scenario())


def test_a_follower_with_a_wrong_password_reports_the_refusal(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = _settings("SCRAM-SHA-512", "wrong") | {"connection.failed.authentication.delay.ms": "0"}
        async with ReplicatingCluster(tmp_path, settings=settings) as cluster:
            _add_users(cluster)
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0)
            await until(lambda: "refuses the login of broker" in str(logs))
            assert "wrong" not in str(logs)
            assert cluster.end_offset(2, T0) == 0

    with capture_logs() as logs:
        asyncio.run(scenario())


def test_a_follower_keeps_its_session(tmp_path: Path) -> None:
    """With a session of 1.3 s, the follower authenticates again and does not lose its connection."""

    async def scenario() -> None:
        settings = _settings("SCRAM-SHA-256") | {"connections.max.reauth.ms": "1300"}
        async with ReplicatingCluster(tmp_path, settings=settings) as cluster:
            _add_users(cluster)
            await cluster.elect("t", 1, 0, isr=(1, 2))
            loop = asyncio.get_running_loop()
            leader = cluster.brokers[1].replica(T0)
            ends_at = loop.time() + 3.5
            count = 0
            while loop.time() < ends_at:
                append_to(leader)
                count += 1
                await until(lambda: leader.core.high_watermark == count)  # noqa: B023
                await asyncio.sleep(0.05)
            opened = cluster.brokers[1].broker.telemetry.listeners["BROKERS"].accepted_total
            assert opened == 1

    asyncio.run(scenario())
