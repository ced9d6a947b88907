"""The recovery points of logs that were cut are lowered on disk before anything is appended there.

With a higher recovery point on disk, a start after a crash of the machine would take unflushed segments for
flushed ones. It would refuse the log if one is missing, and would not check the others.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from brokerlab.replicating_brokers import PATIENCE_S, ReplicatingBroker, ReplicatingCluster, until
from tidelog.broker.log.directory_files import LogStorageError, read_offsets
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.partition.roles import FetchState
from tidelog.log_format.directory import RECOVERY_POINT_CHECKPOINT
from tidelog.model.topics import TopicPartition

PARTITIONS = 20
ALL = [TopicPartition("t", partition) for partition in range(PARTITIONS)]


async def lead_alone(cluster: ReplicatingCluster, path: Path) -> ReplicatingBroker:
    """Has broker 1 lead with records that broker 2 never receives, all flushed."""
    await cluster.elect("t", 1, 0, partitions=PARTITIONS, told=(1,))
    node = cluster.brokers[1]
    for topic_partition in ALL:
        cluster.append(1, topic_partition, records=3)
        node.replica(topic_partition).storage.flush()
    node.broker.log_directory.checkpoint_recovery_points()
    assert read_offsets(path / RECOVERY_POINT_CHECKPOINT) == dict.fromkeys(ALL, 3)
    return node


def test_recovery_points_are_lowered_before_the_follower_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All logs that are cut during a write share the next one."""
    path = tmp_path / "1"
    writes: list[LogDirectory] = []
    may_write = threading.Event()

    def checkpoint(directory: LogDirectory) -> None:
        if directory.path == path:
            writes.append(directory)
            may_write.wait(PATIENCE_S)
        real_checkpoint(directory)

    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            node = await lead_alone(cluster, path)
            with monkeypatch.context() as patched:
                patched.setattr(LogDirectory, "checkpoint_recovery_points", checkpoint)
                await cluster.elect("t", 2, 1, partitions=PARTITIONS)
                replicas = [node.replica(topic_partition) for topic_partition in ALL]
                await until(lambda: all(replica.log.log_end_offset == 0 for replica in replicas))
                assert {replica.core.fetch_state for replica in replicas} == {FetchState.TRUNCATING}
                may_write.set()
                await until(lambda: all(r.core.fetch_state is FetchState.FETCHING for r in replicas))
                assert read_offsets(path / RECOVERY_POINT_CHECKPOINT) == dict.fromkeys(ALL, 0)
                assert 1 <= len(writes) <= 2

    real_checkpoint = LogDirectory.checkpoint_recovery_points
    asyncio.run(scenario())


def test_a_follower_goes_on_if_the_checkpoint_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next periodic checkpoint repeats the write."""

    def fail(directory: LogDirectory) -> None:
        raise LogStorageError("no")

    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            node = await lead_alone(cluster, tmp_path / "1")
            with monkeypatch.context() as patched:
                patched.setattr(LogDirectory, "checkpoint_recovery_points", fail)
                await cluster.elect("t", 2, 1, partitions=PARTITIONS)
                replicas = [node.replica(topic_partition) for topic_partition in ALL]
                await until(lambda: all(r.core.fetch_state is FetchState.FETCHING for r in replicas))

    asyncio.run(scenario())
