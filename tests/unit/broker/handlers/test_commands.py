"""A command of the controller is carried out once and only for the newest controller. The failure of one
partition does not affect the others.
"""

from __future__ import annotations

import asyncio
import uuid
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

import pytest

from brokerlab.in_memory_broker import BROKER_ID, InMemoryBroker
from tidelog.broker.hosting.hosting import FAILED_RETRY_MS
from tidelog.broker.hosting.hosting_state import HostingState
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.kernel import slices
from tidelog.kernel.timer import VirtualTimer
from tidelog.metadata.entries import AclEntry, GroupConfigEntry, SecurityEntry
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    user_principal,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import (
    CommandResult,
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    SecurityUpdate,
    StopReplica,
    TopicState,
    UpdateMetadata,
)

EPOCH = 7
OLD_ID = uuid.uuid5(uuid.NAMESPACE_DNS, "t")
NEW_ID = uuid.UUID(int=99)
T0 = TopicPartition("t", 0)


def state(**changes: Any) -> PartitionState:
    fields: dict[str, Any] = {
        "topic": "t",
        "topic_id": OLD_ID,
        "partition": 0,
        "leader": BROKER_ID,
        "leader_epoch": 3,
        "isr": (BROKER_ID,),
        "replicas": (BROKER_ID,),
        "controller_epoch": EPOCH,
        "partition_epoch": 1,
    }
    return PartitionState(**{**fields, **changes})


def lead(
    lab: InMemoryBroker, *states: PartitionState, epoch: int = EPOCH, is_full: bool = False
) -> CommandResult:
    return lab.runner.run(
        lab.commands.leader_and_isr(LeaderAndIsr(BROKER_ID, epoch, states, is_full=is_full))
    )


def test_an_older_controller_is_refused(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lead(lab, epoch=9)
    run = lab.runner.run
    results = (
        lead(lab, state(leader=2, leader_epoch=50), epoch=8),
        run(lab.commands.update_metadata(UpdateMetadata(2, 8, brokers=(), is_full=True))),
        run(lab.commands.stop_replica(StopReplica(2, 8, (T0,), {}, delete=True))),
    )
    assert [result.error for result in results] == [ErrorCode.STALE_CONTROLLER_EPOCH] * 3
    assert lab.broker.hosted.replicas[T0].core.is_leader
    assert "t" in lab.broker.metadata.topics
    assert lab.broker.metadata.brokers


def test_a_repeated_command_changes_nothing(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.append("t", 5)
    replica = lab.broker.hosted.replicas[T0]
    assert not lead(lab, state()).partition_errors
    assert lab.broker.hosted.replicas[T0] is replica
    assert (replica.core.leader_epoch, replica.core.high_watermark) == (3, 5)


@pytest.mark.parametrize("changes", [{"leader_epoch": 2, "leader": 2}, {"partition_epoch": 0, "leader": 2}])
def test_an_overtaken_command_is_ignored(lab: InMemoryBroker, changes: dict[str, int]) -> None:
    lab.add_topic("t")
    lead(lab, state(**changes))
    assert lab.broker.hosted.leader_replica("t", 0).core.leader_epoch == 3


def test_a_topic_that_was_created_again_is_empty(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.append("t", 5)
    lead(lab, state(topic_id=NEW_ID, leader_epoch=0, partition_epoch=0))
    replica = lab.broker.hosted.leader_replica("t", 0)
    assert (replica.topic_id, replica.log.log_end_offset) == (NEW_ID, 0)
    assert lab.broker.log_directory.topic_id_on_disk(T0) == NEW_ID


def test_the_old_id_of_a_topic_that_was_created_again_is_unknown(lab: InMemoryBroker) -> None:
    """Otherwise, records for the deleted topic would go to the new one."""
    lab.add_topic("t")
    again = state(topic_id=NEW_ID, leader_epoch=0, partition_epoch=0)
    lead(lab, again)
    assert OLD_ID not in lab.broker.metadata.topic_names
    lab.update_metadata(topics=(TopicState("t", NEW_ID, (again,), {}),))
    assert lab.broker.metadata.topic_names == {NEW_ID: "t"}
    lab.update_metadata(deleted_topics=(DeletedTopic("t", OLD_ID),))
    assert lab.broker.metadata.topic_names == {NEW_ID: "t"}
    assert lab.broker.metadata.topics["t"].topic_id == NEW_ID


def test_metadata_alone_replaces_a_topics_id(lab: InMemoryBroker) -> None:
    lab.add_topic("t", leader=2)
    lab.update_metadata(topics=(TopicState("t", NEW_ID, (state(topic_id=NEW_ID, leader=2),), {}),))
    assert lab.broker.metadata.topic_names == {NEW_ID: "t"}


def test_stop_replica_does_not_delete_a_topic_that_was_created_again(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    stop = StopReplica(BROKER_ID, EPOCH, (T0,), {"t": NEW_ID}, delete=True)
    lab.runner.run(lab.commands.stop_replica(stop))
    assert T0 in lab.broker.hosted.replicas


def test_the_high_watermark_survives_a_restart(lab: InMemoryBroker) -> None:
    """The high watermark never decreases."""
    lab.add_topic("t")
    lab.append("t", 5)
    lab.runner.run(lab.commands.stop_replica(StopReplica(BROKER_ID, EPOCH, (T0,), {}, delete=False)))
    lead(lab, state(leader=2, leader_epoch=4, isr=(2,), replicas=(BROKER_ID, 2)))
    assert lab.broker.hosted.replicas[T0].core.high_watermark == 5


def test_writing_an_epoch_is_retried(lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.add_topic("t", partitions=2)
    lab.append("t", 5)

    def full_disk(self: PartitionLog) -> None:
        if self.log.directory.path.endswith("t-0"):
            raise LogStorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "persist_leader_epochs", full_disk)
        result = lead(lab, *(state(partition=index, leader_epoch=4) for index in range(2)))
    assert result.partition_errors == {T0: ErrorCode.KAFKA_STORAGE_ERROR}
    assert T0 not in lab.broker.hosted.replicas
    assert T0 not in lab.broker.log_directory.partitions  # its files are closed
    assert lab.broker.hosted.leader_replica("t", 1).core.leader_epoch == 4
    pass_time(lab)  # the controller does not repeat the command
    assert lab.broker.hosted.leader_replica("t", 0).log.log_end_offset == 5


def test_a_replica_that_lost_records_when_its_disk_failed_follows_but_does_not_lead(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t")
    lab.append("t", 5)
    segment = next(Path(lab.broker.log_directory.partitions[T0].log.directory.path).glob("*.log"))

    def full_disk(self: PartitionLog) -> None:
        raise LogStorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "persist_leader_epochs", full_disk)
        lead(lab, state(leader_epoch=4))
    segment.write_bytes(b"")
    pass_time(lab)
    assert lab.broker.hosted.state(T0) is HostingState.FAILED
    lead(lab, state(leader=2, leader_epoch=5, isr=(2,), replicas=(BROKER_ID, 2)))
    assert lab.broker.hosted.state(T0) is HostingState.FOLLOWING


def test_a_failed_replica_that_is_stopped_is_forgotten(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t")

    def full_disk(self: PartitionLog) -> None:
        raise LogStorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "persist_leader_epochs", full_disk)
        lead(lab, state(leader_epoch=4))
        pass_time(lab)
        assert T0 not in lab.broker.hosted.replicas
    lab.runner.run(lab.commands.stop_replica(StopReplica(BROKER_ID, EPOCH, (T0,), {}, delete=True)))
    pass_time(lab)
    assert T0 not in lab.broker.hosted.replicas


def test_a_stopped_broker_does_not_try_a_failed_partition_again(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(lab, state(), is_full=True)

    def full_disk(self: PartitionLog) -> None:
        raise LogStorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "persist_leader_epochs", full_disk)
        lead(lab, state(leader_epoch=4))
    lab.runner.run(lab.commands.stop())
    pass_time(lab)
    assert T0 not in lab.broker.hosted.replicas


def pass_time(lab: InMemoryBroker) -> None:
    async def advance() -> None:
        timer = cast(VirtualTimer, lab.broker.timer)
        timer.advance(timer.monotonic_ms() + FAILED_RETRY_MS)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    lab.runner.run(advance())


def test_a_bug_is_reported_after_all_partitions_are_done(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_or_follow = Replica.lead_or_follow

    async def broken(self: Replica, wanted: PartitionState, now_ms: int) -> None:
        if wanted.partition == 0:
            raise ZeroDivisionError
        await lead_or_follow(self, wanted, now_ms)

    monkeypatch.setattr(Replica, "lead_or_follow", broken)
    with pytest.raises(ZeroDivisionError):
        lead(lab, *(state(partition=index) for index in range(3)))
    assert lab.broker.hosted.leader_replica("t", 2)


def test_partitions_that_a_full_command_omits_become_stray(lab: InMemoryBroker) -> None:
    lab.add_topic("t", partitions=2)
    lead(lab, state(), is_full=True)
    assert list(lab.broker.hosted.replicas) == [T0]
    with pytest.raises(KafkaError, match="NOT_LEADER_OR_FOLLOWER"):
        lab.broker.hosted.leader_replica("t", 1)
    assert lab.broker.log_directory.topic_partitions_on_disk() == [T0]


def test_settings_reach_the_replicas(lab: InMemoryBroker) -> None:
    topic_id = lab.add_topic("t")
    lab.update_metadata(topics=(TopicState("t", topic_id, (state(),), {"retention.ms": "5000"}),))
    assert lab.broker.hosted.replicas[T0].log.config.retention_ms == 5000
    lab.update_metadata(broker_configs={"": {"message.max.bytes": "1234"}})
    assert lab.broker.hosted.replicas[T0].settings.max_message_bytes == 1234


def test_a_full_update_of_security_entries_is_taken_in_slices(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    entries: list[SecurityEntry] = []
    for number in range(count):
        user = user_principal(f"u{number}")
        acl = AclBinding(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            f"t{number}",
            user,
            "10.0.0.0/8",
            AclOperation.READ,
            PermissionType.ALLOW,
        )
        entries.append(AclEntry(acl))
        entries.append(GroupConfigEntry(f"g{number}", {"share.session.timeout.ms": "50000"}))
    keys: list[str] = []
    for kind in (AclEntry, GroupConfigEntry):
        key_of = cast("property", kind.key).fget

        def counted(entry: Any, key_of: Any = key_of) -> str:
            keys.append(key_of(entry))
            return keys[-1]

        monkeypatch.setattr(kind, "key", property(counted))
    monkeypatch.setattr(slices, "SLICE_MS", 0)
    metadata = lab.broker.metadata
    seen: list[tuple[int, int]] = []

    async def update(security: SecurityUpdate) -> int:
        """Returns the number of turns of the event loop that others had meanwhile."""
        keys.clear()
        seen.clear()
        command = UpdateMetadata(1, 7, tuple(metadata.brokers.values()), security=security, is_full=True)
        asked = asyncio.ensure_future(lab.commands.update_metadata(command))
        while not asked.done():
            seen.append((metadata.version, metadata.security.revision))
            await asyncio.sleep(0)
        assert asked.result() == CommandResult()
        return len(seen)

    version = metadata.version
    turns = lab.runner.run(update(SecurityUpdate(5, tuple(entries))))
    assert turns >= 2 * count // slices.STEPS_BETWEEN_READINGS
    assert len(keys) == 2 * count, "each key is computed once"
    assert set(seen) <= {(version, 0), (version + 1, 5)}, "the update is in force as a whole or not at all"
    snapshot = metadata.security
    assert snapshot.rules.decide(user, IPv4Address("10.0.0.1"), AclOperation.READ, ResourceType.TOPIC, "t199")
    assert len(snapshot.acls) == len(snapshot.group_configs) == count
    turns = lab.runner.run(update(SecurityUpdate(6, tuple(entries))))
    assert turns >= 2 * count // slices.STEPS_BETWEEN_READINGS
    assert metadata.security is snapshot
    turns = lab.runner.run(update(SecurityUpdate(7)))
    assert turns >= 2 * count // slices.STEPS_BETWEEN_READINGS
    assert not metadata.security.acls
    assert not metadata.security.rules.decide(
        user, IPv4Address("10.0.0.1"), AclOperation.READ, ResourceType.TOPIC, "t199"
    )
