"""Attachments: which coordinator gets one, what it reads and appends with it, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from brokerlab.in_memory_broker import BROKER_ID, OTHER_BROKER_ID, InMemoryBroker, until
from brokerlab.scripted_coordinator import ScriptedCoordinator, batch, shard_partitions
from tidelog.broker.coordination import attachment as attachment_module
from tidelog.broker.partition.events import FollowerFetched
from tidelog.model.coordinator_shards import ShardId
from tidelog.model.errors import ErrorCode
from tidelog.records.record import iterate_records
from tidelog.rpc.coordinator_session import (
    AppendToShard,
    AttachShard,
    DetachShard,
    Hello,
    ReadShard,
    ShardAttached,
    ShardCommitted,
    ShardLost,
    ShardRecords,
    TrimShard,
)


def read(
    lab: InMemoryBroker, coordinator: ScriptedCoordinator, attachment: int, offset: int, max_bytes: int
) -> ShardRecords:
    async def ask() -> None:
        coordinator.say(ReadShard(attachment, offset, max_bytes))
        await until(lambda: bool(coordinator.sent))

    lab.runner.run(ask())
    return coordinator.take_one(ShardRecords)


def values(answer: ShardRecords) -> list[bytes]:
    found, at = [], 0
    while at < len(answer.records):
        size = int.from_bytes(answer.records[at + 8 : at + 12], "big") + 12
        found += [bytes(r.value or b"") for r in iterate_records(answer.records[at : at + size])]
        at += size
    return found


def test_an_item_before_hello_ends_the_session(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    line = coordinator.end.line
    late = lab.broker.coordination.accept(line)
    late.received([AttachShard(1, shard, 1)])
    assert coordinator.is_closed and late.is_closed


def test_a_new_session_of_a_coordinator_ends_its_last_one(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    first = ScriptedCoordinator(lab, 5)
    first.own(shard)
    second = ScriptedCoordinator(lab, 5)
    assert first.is_closed and not second.is_closed
    assert second.attach(shard, 1).leader_epoch == 3


def test_sessions_are_bounded(lab: InMemoryBroker) -> None:
    for number in range(100):
        assert not ScriptedCoordinator(lab, number).is_closed
    assert ScriptedCoordinator(lab, 100).is_closed


def test_the_leader_reports_the_logs_offsets(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    lab.append(shard.kind.topic, 3)
    assert ScriptedCoordinator(lab).attach(shard) == ShardAttached(1, 3, 0, 3, 3)


def test_a_broker_that_does_not_lead_refuses(lab: InMemoryBroker) -> None:
    coordinator = ScriptedCoordinator(lab)
    _, elsewhere = shard_partitions(lab, leaders=(BROKER_ID, OTHER_BROKER_ID))
    coordinator.say(AttachShard(1, elsewhere, 1), AttachShard(2, elsewhere._replace(partition=9), 1))
    assert [lost.error for lost in coordinator.take(ShardLost)] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_the_higher_shard_epoch_gets_the_shard(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    older, newer = ScriptedCoordinator(lab, 1), ScriptedCoordinator(lab, 2)
    held = older.attach(shard, 4)
    newer.attach(shard, 5)
    assert older.take_one(ShardLost).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    older.say(AttachShard(9, shard, 4))
    assert older.take_one(ShardLost).attachment == 9
    older.say(AppendToShard(held.attachment, 3, 0, batch(b"late")))
    assert lab.broker.hosted.leader_replica(*shard.topic_partition).core.log_end_offset == 0


def test_an_owner_reads_all_batches_to_the_end(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    for count in (2, 3, 1):
        lab.append(shard.kind.topic, count)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    first = read(lab, coordinator, attachment, 0, 1)
    assert (first.next_offset, first.log_end_offset) == (2, 6)
    assert values(first) == [b"0", b"1"]
    rest = read(lab, coordinator, attachment, 2, 1 << 20)
    assert rest.next_offset == 6
    assert values(rest) == [b"0", b"1", b"2", b"0"]
    end = read(lab, coordinator, attachment, 6, 1 << 20)
    assert (end.records, end.next_offset, end.log_end_offset) == (b"", 6, 6)


def test_an_owner_trims_the_log(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    for count in (2, 3):
        lab.append(shard.kind.topic, count)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    coordinator.say(TrimShard(attachment, 2))
    coordinator.say(TrimShard(attachment, 1))  # an older one, which has no effect
    assert lab.broker.hosted.leader_replica(*shard.topic_partition).core.log_start_offset == 2
    coordinator.say(TrimShard(attachment, 6))
    assert coordinator.take_one(ShardLost).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_read_beyond_the_log_loses_the_shard(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment

    async def ask() -> None:
        coordinator.say(ReadShard(attachment, 5, 100))
        await until(lambda: bool(coordinator.sent))

    lab.runner.run(ask())
    assert coordinator.take_one(ShardLost).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_unreceived_reads_are_bounded(lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = shard_partitions(lab, leaders=(BROKER_ID,) * 6)
    for shard in shards:
        lab.append(shard.kind.topic, 3, shard.partition)
    coordinator = ScriptedCoordinator(lab)
    numbers = [coordinator.attach(shard).attachment for shard in shards]
    size_bytes = len(read(lab, coordinator, numbers[0], 0, 1 << 20).records)
    coordinator.say(DetachShard(numbers.pop(0)))
    monkeypatch.setattr(attachment_module, "MAX_UNTAKEN_BYTES", size_bytes + 1)

    def answered(count: int) -> list[int]:
        lab.runner.run(until(lambda: len(coordinator.sent) >= count))
        lab.runner.run(asyncio.sleep(0.02))
        assert len(coordinator.sent) == count
        return [answer.attachment for answer in coordinator.take(ShardRecords)]

    async def ask(*items: ReadShard | AppendToShard | DetachShard) -> None:
        coordinator.say(*items)

    lab.runner.run(ask(*(ReadShard(number, 0, size_bytes) for number in numbers)))
    assert sorted(answered(2)) == numbers[:2]
    lab.runner.run(ask(AppendToShard(numbers[0], 3, 3, batch(b"claim"))))
    assert coordinator.take_one(ShardCommitted).attachment == numbers[0]
    assert answered(1) == numbers[2:3]
    lab.runner.run(ask(DetachShard(numbers[1]), DetachShard(numbers[3])))  # the latter was never read
    assert answered(1) == numbers[4:]
    lab.runner.run(ask(ReadShard(numbers[4], 3, size_bytes)))  # reads on, at the end
    assert answered(1) == numbers[4:]


def test_appends_need_no_answer_before_the_next(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    coordinator.say(
        AppendToShard(attachment, 3, 0, batch(b"a", b"b")),
        AppendToShard(attachment, 3, 2, batch(b"c") + batch(b"d", b"e")),
    )
    assert [item.high_watermark for item in coordinator.take(ShardCommitted)][-1] == 5
    assert not coordinator.sent
    assert values(read(lab, coordinator, attachment, 0, 1 << 20)) == [b"a", b"b", b"c", b"d", b"e"]


def test_an_append_at_another_offset_or_epoch_loses_the_shard(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    replica = lab.broker.hosted.leader_replica(*shard.topic_partition)
    for epoch, offset in ((3, 1), (2, 0), (4, 0)):
        attachment = coordinator.attach(shard).attachment
        coordinator.say(
            AppendToShard(attachment, epoch, offset, batch(b"a")),
            AppendToShard(attachment, 3, 0, batch(b"b")),  # by an attachment that has ended
        )
        assert coordinator.take_one(ShardLost).attachment == attachment
        assert not coordinator.sent
        assert replica.core.log_end_offset == 0


def test_bytes_that_are_not_batches_lose_only_the_shard(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    whole = batch(b"a")
    for wrong in (b"", b"nonsense", whole[:-1], whole[:-1] + b"x", whole + b"\0" * 5):
        attachment = coordinator.attach(shard).attachment
        coordinator.say(AppendToShard(attachment, 3, 0, wrong))
        assert coordinator.take(ShardLost) or not coordinator.sent, wrong
        assert not coordinator.is_closed, wrong
        coordinator.say(DetachShard(attachment))
    assert lab.broker.hosted.leader_replica(*shard.topic_partition).core.log_end_offset == 0


def test_records_on_the_whole_isr_are_committed(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab, replicas=(BROKER_ID, OTHER_BROKER_ID))
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    coordinator.say(AppendToShard(attachment, 3, 0, batch(b"a", b"b")))
    assert not coordinator.take(ShardCommitted)
    follower_has(lab, shard, 2)
    assert coordinator.take_one(ShardCommitted) == ShardCommitted(attachment, 2)


def follower_has(lab: InMemoryBroker, shard: ShardId, offset: int) -> None:
    replica = lab.broker.hosted.leader_replica(*shard.topic_partition)
    replica.step(FollowerFetched(OTHER_BROKER_ID, 11, offset, 0, lab.clock.monotonic_ms()))


def test_a_new_leader_epoch_loses_the_shard(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    shard_partitions(lab, partition_epoch=2)  # the same role once more
    assert not coordinator.sent
    shard_partitions(lab, leader_epoch=4, partition_epoch=3)
    assert coordinator.take_one(ShardLost)[:2] == (attachment, ErrorCode.FENCED_LEADER_EPOCH)
    assert coordinator.attach(shard).leader_epoch == 4


def test_a_broker_that_becomes_a_follower_loses_the_shard(lab: InMemoryBroker) -> None:
    replicas = (BROKER_ID, OTHER_BROKER_ID)
    (shard,) = shard_partitions(lab, replicas=replicas)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard).attachment
    shard_partitions(lab, leaders=(OTHER_BROKER_ID,), leader_epoch=4, replicas=replicas, partition_epoch=2)
    assert coordinator.take_one(ShardLost)[:2] == (attachment, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_nothing_is_kept_after_a_detachment_or_the_sessions_end(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    attachment = coordinator.attach(shard, 8).attachment
    coordinator.say(DetachShard(attachment), AppendToShard(attachment, 3, 0, batch(b"a")))
    assert not coordinator.sent
    coordinator.attach(shard, 8)
    coordinator.end.closed()
    assert ScriptedCoordinator(lab, 2).attach(shard, 9)
    assert not coordinator.is_closed  # The other side closed it.


def test_a_stopped_broker_refuses_sessions(lab: InMemoryBroker) -> None:
    (shard,) = shard_partitions(lab)
    coordinator = ScriptedCoordinator(lab)
    coordinator.attach(shard)
    lab.broker.coordination.stop()
    assert coordinator.is_closed
    assert ScriptedCoordinator(lab, 2).is_closed


def test_a_second_hello_ends_the_session(lab: InMemoryBroker) -> None:
    coordinator = ScriptedCoordinator(lab)
    coordinator.say(Hello(1))
    assert coordinator.is_closed
