"""Followers that fetch from leaders over real sockets end up with their leaders' logs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerlab.logs import read_all
from brokerlab.replicating_brokers import PATIENCE_S, ReplicatingCluster, append_to, until
from brokerlab.tcp_relay import TcpRelay
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.partition.roles import FetchState
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)
SMALL_SEGMENTS = {"segment.bytes": "1048576", "internal.segment.bytes": "1500", "index.interval.bytes": "200"}


def test_a_follower_gets_the_leaders_records_and_joins_the_isr(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0, partitions=3)
            for partition in range(3):
                for _ in range(5):
                    cluster.append(1, TopicPartition("t", partition), records=3)
            for partition in range(3):
                await cluster.level(TopicPartition("t", partition), 1)
            leader, follower = (cluster.brokers[number].replica(T0) for number in (1, 2))
            await until(lambda: leader.core.in_sync_replicas == (1, 2))
            assert read_all(follower.log) == read_all(leader.log)
            assert list(follower.core.leader_epochs) == list(leader.core.leader_epochs)
            assert cluster.brokers[2].broker.telemetry.broker_traffic.replication_bytes_in == 3 * sum(
                map(len, read_all(leader.log))
            )

    asyncio.run(scenario())


def test_num_replica_fetchers_applies_to_partitions_that_are_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0, partitions=4)
            follower = cluster.brokers[2].broker
            for expected in (1, 3, 2):
                current = follower.current_settings
                change = {"num.replica.fetchers": str(expected)}
                current.replace(current.broker.with_dynamic(dynamic_default=change, dynamic={}))
                assert len(follower.fetchers._fetchers) == expected
                for partition in range(4):
                    cluster.append(1, TopicPartition("t", partition), records=3)
                for partition in range(4):
                    await cluster.level(TopicPartition("t", partition), 1)

    asyncio.run(scenario())


def test_an_append_advances_the_high_watermark_in_one_round_trip(tmp_path: Path) -> None:
    """The follower's fetch waits at the leader. It does not have to time out before the next one arrives."""

    async def scenario() -> None:
        patient = {"replica.fetch.wait.max.ms": "10000"}
        async with ReplicatingCluster(tmp_path, 3, patient) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2, 3))
            leader = cluster.brokers[1].replica(T0)
            for count in range(1, 20):
                append_to(leader)
                await until(lambda: leader.core.high_watermark == count, f"for batch {count}")  # noqa: B023

    asyncio.run(asyncio.wait_for(scenario(), 8))


def test_a_topic_created_while_a_fetch_waits_is_fetched_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path, 2, {"replica.fetch.wait.max.ms": "10000"}) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2))
            cluster.append(1, T0)
            leader = cluster.brokers[1].replica(T0)
            await until(lambda: leader.core.high_watermark == 1)
            await cluster.elect("u", 1, 0, isr=(1, 2))
            cluster.append(1, TopicPartition("u", 0))
            other = cluster.brokers[1].replica(TopicPartition("u", 0))
            await until(lambda: other.core.high_watermark == 1)
            # In a new epoch, the follower first asks where the previous one ended.
            await cluster.elect("t", 1, 1, isr=(1, 2))
            cluster.append(1, T0)
            await until(lambda: leader.core.high_watermark == 2)

    asyncio.run(asyncio.wait_for(scenario(), 8))


def test_the_follower_reconnects_to_a_restarted_leader(tmp_path: Path) -> None:
    """The connection to the earlier process is silent, as after a pod and its address were removed."""

    async def scenario() -> None:
        patient = {"replica.fetch.wait.max.ms": "10000", "replica.socket.timeout.ms": "20000"}
        async with ReplicatingCluster(tmp_path, 2, patient) as cluster:
            leader = cluster.brokers[1]
            async with TcpRelay("127.0.0.1", leader.listener.port) as relay:
                leader.told_port = relay.port
                await cluster.elect("t", 1, 0, isr=(1, 2))
                cluster.append(1, T0)
                await until(lambda: leader.replica(T0).core.high_watermark == 1)
                relay.swallow()
                cluster.append(1, T0)
                leader.told_port = None
                leader.broker.identity.broker_epoch += 1
                await cluster.show_brokers()
                await until(lambda: leader.replica(T0).core.high_watermark == 2)

    asyncio.run(asyncio.wait_for(scenario(), 15))


def test_a_diverged_log_is_truncated_by_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            for _ in range(4):
                cluster.append(1, T0)
            await cluster.level(T0, 1)
            # Broker 2 knows no leader and 1 continues alone; then 2 leads and 1 follows.
            await cluster.elect("t", -1, 1, told=(2,))
            for _ in range(3):
                cluster.append(1, T0)
            await cluster.elect("t", 2, 2)
            for _ in range(5):
                cluster.append(2, T0, value_bytes=20)
            await cluster.level(T0, 2)
            one, two = (cluster.brokers[number].replica(T0) for number in (1, 2))
            assert read_all(one.log) == read_all(two.log)
            assert two.core.log_end_offset == 9
            assert list(one.core.leader_epochs) == [(0, 0), (2, 4)]

    asyncio.run(scenario())


def test_a_follower_below_the_leaders_log_start_restarts_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            await cluster.elect("t", -1, 1, told=(2,))
            leader = cluster.brokers[1].replica(T0)
            for _ in range(6):
                append_to(leader)
            # Only the leader's own offsets count for its high watermark now.
            await until(lambda: leader.core.log_end_offset == 7)
            await cluster.elect("t", 1, 2, told=(1,))
            leader.delete_records(5)
            await cluster.elect("t", 1, 3)
            await cluster.level(T0, 1)
            follower = cluster.brokers[2].replica(T0)
            assert follower.core.log_start_offset == 5
            assert read_all(follower.log) == read_all(leader.log)

    asyncio.run(scenario())


def test_the_log_start_follows_the_leaders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            for _ in range(5):
                cluster.append(1, T0)
            await cluster.level(T0, 1)
            cluster.brokers[1].replica(T0).delete_records(3)
            follower = cluster.brokers[2].replica(T0)
            await until(lambda: follower.core.log_start_offset == 3)

    asyncio.run(scenario())


def test_a_leader_that_returns_at_another_address_is_followed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            await cluster.brokers[1].go_dark()
            cluster.append(1, T0)
            await cluster.brokers[1].come_back()
            await cluster.show_brokers()
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            assert cluster.end_offset(2, T0) == 3

    asyncio.run(scenario())


def test_a_new_epoch_is_on_disk_before_its_batches_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_when_flushed: list[int] = []
    persist = PartitionLog.persist_leader_epochs

    def watched(log: PartitionLog, *, syncs: bool = False) -> None:
        if syncs:
            ends_when_flushed.append(log.log.log_end_offset)
        persist(log, syncs=syncs)

    monkeypatch.setattr(PartitionLog, "persist_leader_epochs", watched)

    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            await cluster.elect("t", 1, 4)
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            assert ends_when_flushed == [0, 1]
            follower = cluster.brokers[2].replica(T0)
            assert list(follower.core.leader_epochs) == [(0, 0), (4, 1)]

    asyncio.run(scenario())


def test_a_closed_replica_is_not_fetched(tmp_path: Path) -> None:
    async def scenario() -> None:

        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0)
            cluster.append(1, T0)
            await cluster.level(T0, 1)
            follower = cluster.brokers[2].broker
            await follower.hosting.close(T0, delete=True)
            assert not list(follower.fetchers.lags())

    asyncio.run(scenario())


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    step = st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("part ways"), st.integers(1, 4)),
        st.tuples(st.just("change leader"), st.just(0)),
        st.tuples(st.just("level"), st.just(0)),
    )
    return draw(st.lists(step, min_size=1, max_size=10))


@settings(max_examples=25, deadline=None)
@given(histories())
def test_logs_agree_byte_for_byte_after_any_history(steps: list[tuple[str, int]]) -> None:
    """Covers rolls, new epochs, and leaders that had more than their followers and are truncated later."""

    async def scenario(directory: Path) -> None:
        async with ReplicatingCluster(directory) as cluster:
            leader, epoch, sequence = 1, 0, 0
            await cluster.elect("t", leader, epoch, configs=SMALL_SEGMENTS)
            for what, count in steps:
                if what == "append":
                    for _ in range(count):
                        cluster.append(leader, T0, records=2, value_bytes=100 + sequence % 50)
                        sequence += 1
                elif what == "level":
                    await cluster.level(T0, leader)
                else:
                    follower = 3 - leader
                    if what == "part ways":  # The leader writes batches that its follower never gets.
                        epoch += 1
                        await cluster.elect("t", -1, epoch, told=(follower,))
                        for _ in range(count):
                            cluster.append(leader, T0, value_bytes=70)
                    leader, epoch = follower, epoch + 1
                    await cluster.elect("t", leader, epoch)
            cluster.append(leader, T0)  # The follower knows an epoch as soon as it has a batch of it.
            await cluster.level(T0, leader)
            one, two = (cluster.brokers[number].replica(T0) for number in (1, 2))
            assert read_all(one.log) == read_all(two.log)
            assert list(one.core.leader_epochs) == list(two.core.leader_epochs)
            states = {one.core.fetch_state, two.core.fetch_state}
            assert states == {FetchState.NONE, FetchState.FETCHING}

    with TemporaryDirectory() as directory:
        asyncio.run(scenario(Path(directory)))


def test_flush_messages_applies_to_followers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the leader counts as replicated are on the follower's disk."""

    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2), configs={"flush.messages": "1"})
            leader, follower = (cluster.brokers[number].replica(T0) for number in (1, 2))
            for count in range(1, 6):
                append_to(leader)
                await until(lambda: leader.core.high_watermark == count)  # noqa: B023
                assert follower.storage.recovery_point >= count
            with monkeypatch.context() as patch:
                fails = [True, True]

                def flush(log: PartitionLog, up_to: int | None = None, *, now_ms: int | None = None) -> None:
                    if fails and log is follower.storage:
                        fails.pop()
                        raise LogStorageError("no")
                    real_flush(log, up_to, now_ms=now_ms)

                patch.setattr(PartitionLog, "flush", flush)
                append_to(leader)
                await until(lambda: leader.core.high_watermark == 6)
                assert (fails, follower.storage.recovery_point) == ([], 6)

    real_flush = PartitionLog.flush
    asyncio.run(scenario())


def test_a_restarted_follower_flushes_before_it_reports_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed before the flush, so its last records are in the page cache only."""
    configs = {"flush.messages": "1"}

    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2))
            for _ in range(5):
                append_to(cluster.brokers[1].replica(T0))
            await cluster.level(T0, 1)
            leader, follower = (cluster.brokers[number].replica(T0) for number in (1, 2))
            assert follower.storage.recovery_point == 0
            may_flush = threading.Event()

            def flush(log: PartitionLog, up_to: int | None = None, *, now_ms: int | None = None) -> None:
                if log is follower.storage:
                    may_flush.wait(PATIENCE_S)
                real_flush(log, up_to, now_ms=now_ms)

            monkeypatch.setattr(PartitionLog, "flush", flush)
            await cluster.elect("t", 1, 1, isr=(1, 2), configs=configs)
            await asyncio.sleep(0.2)
            assert leader.core.follower_end_offset(2) == -1
            may_flush.set()
            await until(lambda: leader.core.follower_end_offset(2) == 5)
            assert follower.storage.recovery_point == 5

    real_flush = PartitionLog.flush
    asyncio.run(scenario())


def test_a_leader_repeats_a_flush_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path, settings={"replica.fetch.backoff.ms": "10"}) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2), configs={"flush.messages": "1"})
            leader = cluster.brokers[1].replica(T0)
            fails = [True, True]

            def flush(log: PartitionLog, up_to: int | None = None, *, now_ms: int | None = None) -> None:
                if fails and log is leader.storage:
                    fails.pop()
                    raise LogStorageError("no")
                real_flush(log, up_to, now_ms=now_ms)

            monkeypatch.setattr(PartitionLog, "flush", flush)
            append_to(leader)
            await until(lambda: leader.core.high_watermark == 1)
            assert (fails, leader.storage.recovery_point) == ([], 1)

    real_flush = PartitionLog.flush
    asyncio.run(scenario())


def test_a_leader_flushes_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with ReplicatingCluster(tmp_path) as cluster:
            await cluster.elect("t", 1, 0, isr=(1, 2), configs={"flush.messages": "1"})
            leader = cluster.brokers[1].replica(T0)
            fails = [True]

            def flush(log: PartitionLog, up_to: int | None = None, *, now_ms: int | None = None) -> None:
                if fails and log is leader.storage:
                    fails.pop()
                    raise ZeroDivisionError
                real_flush(log, up_to, now_ms=now_ms)

            monkeypatch.setattr(PartitionLog, "flush", flush)
            append_to(leader)
            await until(lambda: not fails)
            await asyncio.sleep(0.05)
            append_to(leader)
            await until(lambda: leader.storage.recovery_point == 2)

    real_flush = PartitionLog.flush
    asyncio.run(scenario())
