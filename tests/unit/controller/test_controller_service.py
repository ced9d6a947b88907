"""The whole controller over a file-backed store: order of effects, restarts, failover, half-done work."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Cluster, RecordingBroker
from tidelog.controller.server import Controller
from tidelog.metadata import file_store as file_store_module
from tidelog.metadata.entries import (
    CONTROLLER_KEY,
    TOPIC_PREFIX,
    IsrChangeEntry,
    PartitionStateEntry,
    decode_entry,
    partition_state_key,
)
from tidelog.metadata.store import Compare, Delete, Put
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

RunCluster = Callable[..., None]


async def _create(cluster: Cluster, name: str, partitions: int = 1, factor: int = 1) -> None:
    reply = await cluster.call(
        ApiKey.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic(name, partitions, factor)])
    )
    assert reply.topics[0].error_code == 0, reply


async def _delete(cluster: Cluster, name: str) -> None:
    # The journal is synced to disk, which takes seconds on a machine whose disk is busy.
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=30_000)
    reply = await cluster.call(ApiKey.DELETE_TOPICS, request, 6)
    assert reply.responses[0].error_code == 0, reply


def test_brokers_know_a_topic_before_the_client_gets_the_response(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        broker.delay_s = 0.01
        await _create(cluster, "t", 3)
        assert set(broker.replicas) == {TopicPartition("t", index) for index in range(3)}
        assert all(state.is_new and state.leader == 1 for state in broker.replicas.values())
        assert len(broker.topics["t"].partitions) == 3
        request = CreatePartitionsRequest([CreatePartitionsTopic("t", 5, None)])
        await cluster.call(ApiKey.CREATE_PARTITIONS, request)
        assert len(broker.replicas) == 5
        change = AlterConfigsResource(2, "t", [AlterableConfig("retention.ms", 0, "5")])
        await cluster.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([change]))
        assert broker.topics["t"].configs == {"retention.ms": "5"}
        await _delete(cluster, "t")
        assert not broker.replicas
        assert not broker.topics
        assert any(isinstance(command, StopReplica) and command.delete for command in broker.commands)

    run_cluster(scenario)


def test_requests_that_write_nothing_do_not_hold_the_event_loop_together(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.birth(1)
        await _create(cluster, "t")
        again, turns = CreateTopicsRequest([CreatableTopic("t", 1, 1)]), 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        replies = await asyncio.gather(*(cluster.call(ApiKey.CREATE_TOPICS, again) for _ in range(100)))
        counting.cancel()
        assert {reply.topics[0].error_code for reply in replies} == {ErrorCode.TOPIC_ALREADY_EXISTS}
        assert turns >= len(replies)

    run_cluster(scenario)


def test_acknowledged_changes_survive_a_restart(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.birth(1)
        await _create(cluster, "kept", 300)
        await _create(cluster, "gone", 200)
        await _delete(cluster, "gone")
        before = cluster.brokers[1].topics["kept"]
        block = await cluster.controller.allocate_producer_ids(1, cluster.epochs[1])
        epoch = cluster.controller.controller_epoch
        await cluster.stop()
        await cluster.start()
        broker = cluster.brokers[1]
        assert cluster.controller.controller_epoch == epoch + 1
        assert list(broker.topics) == ["kept"]
        assert broker.topics["kept"].topic_id == before.topic_id
        states = broker.topics["kept"].partitions
        assert [state.leader_epoch for state in states] == [1] * 300
        assert {state.leader for state in states} == {1}
        lead, update = broker.commands
        assert isinstance(lead, LeaderAndIsr)
        assert lead.is_full
        assert isinstance(update, UpdateMetadata)
        assert update.is_full
        again = await cluster.controller.allocate_producer_ids(1, cluster.epochs[1])
        assert again.first == block.first + block.count
        with pytest.raises(KafkaError):
            await cluster.controller.allocate_producer_ids(1, cluster.epochs[1] - 1)

    run_cluster(scenario)


def test_a_broker_that_fails_and_returns_receives_the_full_state(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 3, 2)
        await cluster.death(1)
        other = cluster.brokers[2]
        await cluster.until(lambda: 1 not in {b.broker_id for b in _last_update(other).brokers})
        await _create(cluster, "after", 1, 2)  # its response comes after all earlier items
        for state in other.topics["t"].partitions:
            assert state.leader in (2, 3)
            assert 1 not in state.isr
        reborn = await cluster.birth(1)
        assert {state.topic for state in reborn.replicas.values()} == {"t"}

    run_cluster(scenario)


def test_overview_counts_brokers_partitions_and_commands(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = cluster.controller
        for broker_id in (1, 2):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 4, 2)
        await _create(cluster, "u", 2, 1)
        assert controller.counts.is_active
        seen = controller.overview()
        assert (seen.partition_counts, seen.controller_epoch) == ({"t": 4, "u": 2}, 1)
        assert (seen.offline_partition_count, seen.preferred_replica_imbalance_count) == (0, 0)
        assert [broker.broker_id for broker in seen.brokers] == [1, 2]
        assert set(seen.queued_commands) == {1, 2}
        await cluster.death(1)
        await cluster.until(lambda: len(controller.overview().brokers) == 1)
        await cluster.until(lambda: controller.overview().offline_partition_count == 1)
        assert controller.overview().preferred_replica_imbalance_count == 3
        assert controller.counts.leader_elections == 2
        assert controller.counts.unclean_leader_elections == 0
        await controller.stop()
        assert not controller.counts.is_active
        assert not controller.overview().partition_counts

    run_cluster(scenario)


def _last_update(broker: RecordingBroker) -> UpdateMetadata:
    return [command for command in broker.commands if isinstance(command, UpdateMetadata)][-1]


def test_a_leaders_isr_change_is_published_and_its_notification_deleted(
    run_cluster: RunCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 1, 2)
        item = await cluster.store.get(partition_state_key("t", 0))
        entry = decode_entry(item.key, item.value)
        assert isinstance(entry, PartitionStateEntry)
        shrunk = entry._replace(isr=(entry.leader,))
        notification = IsrChangeEntry(0, (TopicPartition("t", 0),))
        result = await cluster.store.txn(
            [Compare.mod_revision(item.key, item.mod_revision)],
            [Put(item.key, shrunk.encode()), Put(notification.key, notification.encode())],
        )
        assert result.succeeded
        for broker in cluster.brokers.values():
            await cluster.until(lambda told=broker: told.topics["t"].partitions[0].isr == shrunk.isr)
            assert broker.topics["t"].partitions[0].partition_epoch == result.revision
        watch = cluster.store.watch(notification.key, result.revision + 1)
        assert (await anext(watch)).events[0].value is None
        await watch.aclose()

    run_cluster(scenario)


def test_after_a_concurrent_write_of_a_leader_the_controller_decides_again(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 1, 3)
        item = await cluster.store.get(partition_state_key("t", 0))
        entry = decode_entry(item.key, item.value)
        assert isinstance(entry, PartitionStateEntry)
        # Both happen at once: the controller decides about the dead broker before it has seen the new ISR.
        other = next(broker for broker in entry.isr if broker != entry.leader)
        dying = cluster.death(entry.leader)
        writing = cluster.store.txn(
            [Compare.mod_revision(item.key, item.mod_revision)],
            [Put(item.key, entry._replace(isr=(entry.leader, other)).encode())],
        )
        await asyncio.gather(dying, writing)
        broker = cluster.brokers[other]
        await cluster.until(lambda: broker.topics["t"].partitions[0].leader == other)
        assert broker.topics["t"].partitions[0].isr == (other,)

    run_cluster(scenario)


def test_one_controller_is_active_and_another_takes_over(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        await _create(cluster, "t")
        standby = await Controller.start(cluster.store, cluster.channels, cluster.settings)
        assert not standby.is_active
        with pytest.raises(KafkaError) as raised:
            await standby.allocate_producer_ids(1, cluster.epochs[1])
        assert raised.value.code is ErrorCode.NOT_CONTROLLER
        first_epoch = cluster.controller.controller_epoch
        broker.commands.clear()
        await cluster.controller.stop()
        with pytest.raises(KafkaError):
            await _create(cluster, "u")
        await cluster.until(lambda: standby.is_active)
        assert standby.controller_epoch == first_epoch + 1
        await cluster.until(lambda: len(broker.commands) >= 2)
        assert {command.controller_epoch for command in broker.commands} == {first_epoch + 1}
        cluster.controller = standby
        await _create(cluster, "u")
        assert broker.topics.keys() == {"t", "u"}
        # The partition has not changed, so its leader epoch has not either.
        assert broker.topics["t"].partitions[0].leader_epoch == 0

    run_cluster(scenario)


def test_a_controller_that_lost_its_key_becomes_active_again(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        epoch = cluster.controller.controller_epoch
        await cluster.store.txn([], [Delete(CONTROLLER_KEY)])
        await cluster.until(lambda: cluster.controller.controller_epoch not in (None, epoch))
        await _create(cluster, "t")
        assert "t" in broker.topics

    run_cluster(scenario)


def test_a_standby_controller_has_a_lease_at_the_election(run_cluster: RunCluster) -> None:
    """The controller that stands by renews its lease after a loss, long before the election."""

    async def scenario(cluster: Cluster) -> None:
        leases: list[int] = []
        grant = cluster.store.grant_lease

        async def noted(ttl_ms: int) -> int:
            leases.append(await grant(ttl_ms))
            return leases[-1]

        cluster.store.grant_lease = noted
        settings = BrokerSettings.parse(
            {"broker.session.timeout.ms": "200", "broker.heartbeat.interval.ms": "20", "node.id": "2"}
        )
        standby = await Controller.start(cluster.store, cluster.channels, settings)
        assert standby.why_not_ready() is None
        await cluster.store.revoke_lease(leases[0])  # as etcd does when no renewal arrives
        await cluster.until(lambda: len(leases) == 2)
        await cluster.until(lambda: standby.why_not_ready() is None)
        assert not standby.is_active
        await cluster.controller.stop()
        await cluster.until(lambda: standby.is_active)
        assert len(leases) == 2
        holder = await cluster.store.get(CONTROLLER_KEY)
        assert holder is not None and holder.lease == leases[1]
        cluster.controller = standby

    run_cluster(scenario)


def test_a_full_disk_refuses_a_request_and_the_controller_continues(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        await _create(cluster, "before")
        with monkeypatch.context() as patch:
            patch.setattr(file_store_module.os, "write", full)
            with pytest.raises(KafkaError) as raised:
                await _create(cluster, "refused")
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert "No space left" in str(raised.value)
        await cluster.until(lambda: cluster.controller.is_active)
        await _create(cluster, "after")
        assert broker.topics.keys() == {"before", "after"}

    run_cluster(scenario)


def test_an_unknown_api_is_refused(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for api_key in (ApiKey.FETCH, 999):
            with pytest.raises(KafkaError) as raised:
                await cluster.call(api_key, object())
            assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION

    run_cluster(scenario)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1000), st.sampled_from(["create", "delete", "expand"]))
def test_the_next_controller_completes_half_done_work(
    make_cluster: type[Cluster], per_mille: int, work: str
) -> None:
    """The journal is truncated at any point of work that takes several transactions."""

    async def life(directory: Path) -> tuple[int, int]:
        cluster = make_cluster(directory)
        journal = directory / file_store_module.JOURNAL_NAME
        await cluster.start()
        if work != "create":
            await _create(cluster, "t", 300)
        start = journal.stat().st_size
        if work == "create":
            await _create(cluster, "t", 300)
        elif work == "delete":
            await _delete(cluster, "t")
        else:
            request = CreatePartitionsRequest([CreatePartitionsTopic("t", 600, None)], 30_000)
            await cluster.call(ApiKey.CREATE_PARTITIONS, request)
        end = journal.stat().st_size
        await cluster.stop()
        return start, end

    async def next_life(directory: Path) -> None:
        cluster = make_cluster(directory)
        await cluster.start()
        broker = cluster.brokers[1]
        accepted = {"create": (0, 300), "delete": (0, 300), "expand": (300, 600)}[work]
        count = len(broker.topics["t"].partitions) if "t" in broker.topics else 0
        assert count in accepted
        assert len(broker.replicas) == count
        states = await cluster.store.list_prefix(TOPIC_PREFIX)
        assert len(states.items) == (count + 1 if count else 0)
        if count:
            await _delete(cluster, "t")
        await _create(cluster, "t", 2)
        assert len(broker.replicas) == 2
        await cluster.stop()

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        start, end = asyncio.run(life(directory))
        os.truncate(directory / file_store_module.JOURNAL_NAME, start + (end - start) * per_mille // 1000)
        asyncio.run(next_life(directory))
