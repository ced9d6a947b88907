"""Two thousand partitions take few commands, few transactions and little time. Also, the recipients of each
command.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab.controllers import Cluster, Core, RecordingBroker
from tidelog.controller import pushes, term
from tidelog.controller.core.commands import MAX_RESTARTS, Command, full_commands, steady_full_commands
from tidelog.controller.core.state import ClusterState
from tidelog.kernel import slices
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.metadata.entries import (
    TOPIC_PREFIX,
    IsrChangeEntry,
    PartitionStateEntry,
    TopicEntry,
    decode_entry,
    partition_state_key,
)
from tidelog.metadata.store import Compare, Put
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import CommandResult, LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

RunCluster = Callable[..., None]
# The test takes under half a second; the limit is far below the required time.
BOUND_S = 5.0


async def _create(cluster: Cluster, name: str, partitions: int = 1, factor: int = 1) -> None:
    reply = await cluster.call(
        ApiKey.CREATE_TOPICS, CreateTopicsRequest([CreatableTopic(name, partitions, factor)])
    )
    assert reply.topics[0].error_code == 0, reply


def test_a_failed_broker_with_two_thousand_partitions_is_settled_quickly(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        started = time.perf_counter()
        await _create(cluster, "t", 2000, 3)
        assert time.perf_counter() - started < BOUND_S
        for broker in cluster.brokers.values():
            broker.commands.clear()
        started = time.perf_counter()
        await cluster.death(1)
        told = cluster.brokers[3]
        await cluster.until(lambda: any(isinstance(c, UpdateMetadata) for c in told.commands))
        assert time.perf_counter() - started < BOUND_S
        for broker_id in (2, 3):
            lead, update = cluster.brokers[broker_id].commands
            assert isinstance(lead, LeaderAndIsr)
            assert len(lead.partitions) == 2000
            assert isinstance(update, UpdateMetadata)
            assert {state.leader for state in update.topics[0].partitions} == {2, 3}
            assert {len(state.isr) for state in update.topics[0].partitions} == {2}

    run_cluster(scenario)


def test_a_thousand_topics_take_one_command_of_each_kind(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        broker.commands.clear()
        topics = [CreatableTopic(f"t{number}", 2, 1) for number in range(1000)]
        reply = await cluster.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics))
        assert {topic.error_code for topic in reply.topics} == {0}
        lead, update = broker.commands
        assert len(lead.partitions) == 2000
        assert len(update.topics) == 1000

    run_cluster(scenario)


def test_an_isr_change_is_applied_at_once_and_published_on_notification(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 1, 3)
        item = await cluster.store.get(partition_state_key("t", 0))
        entry = decode_entry(item.key, item.value)
        assert isinstance(entry, PartitionStateEntry)
        for broker in cluster.brokers.values():
            broker.commands.clear()
        shrunk = entry._replace(isr=(entry.leader,))
        await cluster.store.txn(
            [Compare.mod_revision(item.key, item.mod_revision)], [Put(item.key, shrunk.encode())]
        )
        await _create(cluster, "u", 1, 3)
        for broker in cluster.brokers.values():
            assert broker.topics["t"].partitions[0].isr == entry.isr, "there is no notification yet"
            broker.commands.clear()
        notification = IsrChangeEntry(0, (TopicPartition("t", 0), TopicPartition("gone", 3)))
        await cluster.store.txn([], [Put(notification.key, notification.encode())])
        for broker in cluster.brokers.values():
            await cluster.until(lambda told=broker: bool(told.commands))
            (update,) = broker.commands
            assert isinstance(update, UpdateMetadata), "no LeaderAndIsr: the leader knows its own ISR"
            assert [topic.name for topic in update.topics] == ["t"]
            assert update.topics[0].partitions[0].isr == shrunk.isr
        assert await cluster.store.get(notification.key) is None

    run_cluster(scenario)


def test_a_slow_broker_receives_the_full_state(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2):
            await cluster.birth(broker_id)
        deaf = cluster.brokers[2]
        cluster.channels.detach(2)
        for number in range(120):
            request = CreateTopicsRequest([CreatableTopic(f"t{number}", 1, 1)], timeout_ms=1)
            asked = asyncio.create_task(cluster.call(ApiKey.CREATE_TOPICS, request))
            await cluster.until(lambda name=f"t{number}", told=cluster.brokers[1]: name in told.topics)
            asked.cancel()
        deaf.commands.clear()
        cluster.channels.attach(2, deaf)
        await cluster.until(lambda: len(deaf.topics) == 120)
        assert len(deaf.commands) < 120
        assert any(isinstance(c, UpdateMetadata) and c.is_full for c in deaf.commands)

    run_cluster(scenario)


def fail_commands(broker: RecordingBroker, count: int) -> Iterator[int]:
    """Lets the next LeaderAndIsr commands of the broker fail. Returns the failures that are still to come."""
    take, failures = broker.leader_and_isr, iter(range(count))

    async def fail(command: LeaderAndIsr) -> CommandResult:
        if next(failures, None) is not None:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "an error of the broker")
        return await take(command)

    broker.leader_and_isr = fail
    return failures


def test_a_broker_that_failed_a_command_receives_the_full_state(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "FAILED_COMMAND_PAUSE_MS", 20)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        failures = fail_commands(broker, 2)
        await _create(cluster, "t")
        await cluster.until(lambda: TopicPartition("t", 0) in broker.replicas)
        assert next(failures, None) is None

    run_cluster(scenario)


def test_the_full_state_of_a_broker_is_made_in_slices(
    run_cluster: RunCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "FAILED_COMMAND_PAUSE_MS", 20)
    sliced: list[str] = []
    finish = slices.finish

    def counted(steps: Steps[Any], seconds: slices.Seconds) -> Coroutine[object, None, Any]:
        sliced.append(steps.__name__)
        return finish(steps, seconds)

    monkeypatch.setattr(slices, "SLICE_MS", 1e-6)  # with 0, all_at_once would not end
    # The controller's clock counts milliseconds, in which all steps may end.
    monkeypatch.setattr(term, "run_in_slices", lambda steps, seconds: slices.run_in_slices(steps))
    monkeypatch.setattr(slices, "finish", counted)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        topics = [CreatableTopic(f"t{number}", 1, 1) for number in range(100)]
        await cluster.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics))
        fail_commands(broker, 1)
        sliced.clear()
        await _create(cluster, "late")
        await cluster.until(lambda: TopicPartition("late", 0) in broker.replicas)
        assert "steady_full_commands" in sliced

    run_cluster(scenario)


def result_of(steps: Steps[list[Command]], between: Callable[[int], object]) -> tuple[list[Command], int]:
    """Runs all steps, and calls `between` with their number after each. Returns the result and the number."""
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, taken
        taken += 1
        between(taken)


@given(st.lists(st.integers(0, 40), max_size=2 * MAX_RESTARTS), st.booleans())
def test_full_commands_never_mix_two_states(pauses: list[int], is_deletion: bool) -> None:
    """The state changes after each of these numbers of steps."""
    core = Core([1, 2])
    for number in range(10):
        core.make(f"t{number}", [1, 2])
    changes, left = 0, list(pauses)

    def change(_: int) -> None:
        nonlocal changes
        if not left:
            return
        left[0] -= 1
        if left[0] < 0:
            left.pop(0)
            changes += 1
            if is_deletion and changes < 10:
                core.revision += 1
                core.state.apply_removal(f"{TOPIC_PREFIX}t{changes}", core.revision, core.changes)
            else:
                core.make(f"new{changes}", [2, 1])

    commands, taken = result_of(steady_full_commands(core.state, 1, 1, 1), change)
    assert commands == all_at_once(full_commands(core.state, 1, 1, 1))
    assert taken <= (MAX_RESTARTS + 1) * 2 * (10 + len(pauses) + 1)


def test_full_commands_are_made_although_the_state_changes_all_the_time() -> None:
    core = Core([1])
    core.make("t", [1])
    commands, taken = result_of(
        steady_full_commands(core.state, 1, 1, 1), lambda taken: core.make(f"new{taken}", [1])
    )
    assert taken == MAX_RESTARTS
    assert commands == all_at_once(full_commands(core.state, 1, 1, 1))


def test_a_broker_that_knows_a_newer_controller_ends_the_term(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.birth(1)
        epoch = cluster.controller.controller_epoch
        take = broker.update_metadata

        async def refuse_older(command: UpdateMetadata) -> CommandResult:
            if command.controller_epoch < epoch + 3:
                return CommandResult(ErrorCode.STALE_CONTROLLER_EPOCH)
            result: CommandResult = await take(command)
            return result

        broker.update_metadata = refuse_older
        asked = asyncio.create_task(_create(cluster, "t"))
        await cluster.until(lambda: cluster.controller.controller_epoch == epoch + 3)
        await cluster.until(lambda: "t" in broker.topics)
        asked.cancel()

    run_cluster(scenario)


def test_controlled_shutdown_does_not_wait_for_the_broker_itself(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2):
            await cluster.birth(broker_id)
        await _create(cluster, "t", 4, 2)
        cluster.brokers[1].delay_s = 3600.0
        remaining = await cluster.controller.controlled_shutdown(1, cluster.epochs[1])
        assert remaining == ()
        other = cluster.brokers[2]
        assert {state.leader for state in other.topics["t"].partitions} == {2}
        assert {state.isr for state in other.topics["t"].partitions} == {(2,)}
        assert not any(isinstance(command, StopReplica) for command in other.commands)

    run_cluster(scenario)


def test_a_replica_with_a_disk_error_gets_another_leader(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2):
            await cluster.birth(broker_id)
        broken, other = cluster.brokers[1], cluster.brokers[2]
        take = broken.leader_and_isr
        bad = TopicPartition("t", 0)

        async def fails(command: LeaderAndIsr) -> CommandResult:
            await take(command)
            leads = [state for state in command.partitions if state.topic == "t" and state.leader == 1]
            return CommandResult(partition_errors={bad: ErrorCode.KAFKA_STORAGE_ERROR} if leads else {})

        broken.leader_and_isr = fails
        assignments = [CreatableReplicaAssignment(0, [1, 2])]
        request = CreateTopicsRequest([CreatableTopic("t", -1, -1, assignments)])
        await cluster.call(ApiKey.CREATE_TOPICS, request)
        await cluster.until(lambda: other.topics["t"].partitions[0].leader == 2)
        assert other.topics["t"].partitions[0].isr == (2,)
        # As a follower the replica works: it may join the ISR again, and the term continues.
        await cluster.until(lambda: broken.topics["t"].partitions[0].leader == 2)
        request = CreateTopicsRequest([CreatableTopic("alone", -1, -1, [CreatableReplicaAssignment(0, [1])])])
        await cluster.call(ApiKey.CREATE_TOPICS, request)
        assert other.topics["alone"].partitions[0].leader == 1
        # If no other replica can lead, it stays the leader and keeps trying.
        await cluster.death(2)
        await cluster.until(lambda: broken.topics["t"].partitions[0].leader == -1)
        await cluster.birth(2)
        state = cluster.brokers[2].topics["t"].partitions[0]
        assert (state.leader, state.isr) == (2, (2,))

    run_cluster(scenario)


def test_a_reassignment_over_the_store_from_request_to_completion(run_cluster: RunCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        for broker_id in (1, 2, 3):
            await cluster.birth(broker_id)
        assignments = [CreatableReplicaAssignment(index, [1, 2]) for index in range(50)]
        request = CreateTopicsRequest([CreatableTopic("t", -1, -1, assignments)])
        await cluster.call(ApiKey.CREATE_TOPICS, request)
        targets = [ReassignablePartition(index, [2, 3]) for index in range(50)]
        moving = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", targets)])
        reply = await cluster.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, moving)
        assert {partition.error_code for partition in reply.responses[0].partitions} == {0}
        mover = cluster.brokers[1]
        assert {state.adding_replicas for state in mover.topics["t"].partitions} == {(3,)}
        mover.commands.clear()
        for index in range(50):
            item = await cluster.store.get(partition_state_key("t", index))
            entry = decode_entry(item.key, item.value)
            assert isinstance(entry, PartitionStateEntry)
            joined = entry._replace(isr=(*entry.isr, 3))
            await cluster.store.txn([], [Put(item.key, joined.encode())])
        await cluster.until(lambda: not mover.replicas)
        await cluster.until(lambda: all(s.replicas == (2, 3) for s in mover.topics["t"].partitions))
        told = cluster.brokers[2]
        await cluster.until(lambda: {state.leader for state in told.topics["t"].partitions} == {2})
        assert len(mover.commands) < 20, "completed reassignments are collected"

    run_cluster(scenario)


def test_the_full_state_is_read_and_sent_in_a_step_for_each_entry() -> None:
    """A controller that takes office, or to which a broker comes, must not hold the event loop."""
    topics = [TopicEntry(f"t{number}", uuid.UUID(int=number), ((1,),)) for number in range(200)]
    state = ClusterState()
    assert sum(1 for _ in state.load((topic.key, topic.encode(), 1, 1) for topic in topics)) == len(topics)
    assert len(state.topics) == len(topics)
    assert sum(1 for _ in full_commands(state, 1, 1, 1)) == 2 * len(topics)
