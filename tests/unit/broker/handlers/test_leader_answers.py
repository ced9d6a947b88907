"""The responses of a leader with followers, except Fetch and Produce: offsets of a new leader, ends of
epochs, DeleteRecords that waits for all replicas, and throttling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from brokerlab.in_memory_broker import InMemoryBroker, make_context
from brokerlab.leader_lab import LEADER_EPOCH, LeaderLab, parts
from tidelog.broker.requests.request import RequestContext
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

EARLIEST, LATEST = -2, -1


@pytest.fixture
def lab(make_broker: Callable[..., InMemoryBroker]) -> LeaderLab:
    return LeaderLab(make_broker())


def context(version: int) -> RequestContext:
    return make_context(version)


# -- ListOffsets


def offset_of(
    lab: LeaderLab, timestamp: int, *, replica_id: int = -1, version: int = 7
) -> ListOffsetsPartitionResponse:
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic("t", wanted)])
    answer = lab.lab.handle(ApiKey.LIST_OFFSETS, request, context(version))
    assert isinstance(answer, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


def test_a_new_leader_knows_no_latest_offset_until_its_epoch_is_replicated(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        end = lab.append(5)
        await lab.lead(isr=(1, 2), leader_epoch=LEADER_EPOCH + 1)
        assert offset_of(lab, LATEST).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert offset_of(lab, LATEST, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (offset_of(lab, EARLIEST).error_code, offset_of(lab, EARLIEST).offset) == (0, 0)
        lab.follower(2).fetch({0: end}, epoch=LEADER_EPOCH + 1, max_wait_ms=0)
        assert (offset_of(lab, LATEST).error_code, offset_of(lab, LATEST).offset) == (0, end)

    lab.run(scenario)


def test_a_follower_sees_the_log_end_offset(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead()
        end = lab.append(5)
        assert offset_of(lab, LATEST).offset == 0
        assert offset_of(lab, LATEST, replica_id=2).offset == end

    lab.run(scenario)


def test_followers_answer_only_the_debugging_replica_id(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(leader=2)
        assert offset_of(lab, LATEST).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert offset_of(lab, LATEST, replica_id=-2).error_code == 0

    lab.run(scenario)


# -- OffsetForLeaderEpoch


def epoch_end(lab: LeaderLab, epoch: int, current: int, replica_id: int = 2) -> EpochEndOffset:
    wanted = [OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)]
    request = OffsetForLeaderEpochRequest(replica_id, topics=[OffsetForLeaderTopic("t", wanted)])
    return lab.lab.handle(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, context(4)).topics[0].partitions[0]


def test_end_offsets_of_epochs(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        newest = LEADER_EPOCH + 4
        await lab.lead(isr=(1, 2))
        lab.append(5)
        await lab.lead(isr=(1, 2), leader_epoch=newest)
        lab.append(3)
        ends = [
            epoch_end(lab, epoch, newest) for epoch in (LEADER_EPOCH, LEADER_EPOCH + 2, newest, newest + 1)
        ]
        assert [(end.error_code, end.leader_epoch, end.end_offset) for end in ends] == [
            (0, LEADER_EPOCH, 5),
            (0, LEADER_EPOCH, 5),
            (0, newest, 8),
            (0, -1, -1),
        ]
        assert epoch_end(lab, newest, LEADER_EPOCH).error_code == ErrorCode.FENCED_LEADER_EPOCH

    lab.run(scenario)


def test_followers_know_no_ends_of_epochs(lab: LeaderLab) -> None:
    """The debugging replica id is the one of version 2, which has no field for it."""

    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(leader=2)
        for replica_id in (-1, -2):
            answer = epoch_end(lab, 0, -1, replica_id)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    lab.run(scenario)


# -- DescribeProducers


def test_followers_describe_producers(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await lab.lead(isr=(1, 2))
        lab.append(1)
        await lab.lead(leader=2, leader_epoch=LEADER_EPOCH + 1)
        request = DescribeProducersRequest([TopicRequest("t", [0])])
        answer = lab.lab.handle(ApiKey.DESCRIBE_PRODUCERS, request, context(0))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    lab.run(scenario)


# -- DeleteRecords


async def delete(lab: LeaderLab, offset: int) -> DeleteRecordsPartitionResult:
    topic = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=1000)
    answer = await lab.lab.handle(ApiKey.DELETE_RECORDS, request, context(2))
    return answer.topics[0].partitions[0]


async def until_it_waits(lab: LeaderLab) -> None:
    """Waits until the thread that writes the checkpoint has ended."""
    for _ in range(5000):
        if len(lab.broker.waiting.delete_records):
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not wait")


async def replicated_records(lab: LeaderLab) -> None:
    await lab.lead()
    for _ in range(5):
        lab.append()
    for replica_id in (2, 3):
        lab.follower(replica_id).fetch({0: 5}, max_wait_ms=0)


def test_deletion_waits_for_every_replica(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated_records(lab)
        parked = lab.follower(2)
        assert parked.fetch({0: 5}) is None
        deletion = asyncio.create_task(delete(lab, 3))
        await until_it_waits(lab)
        assert parts(parked.answers[0])[0].log_start_offset == 3  # the leader responds at once
        lab.follower(2).fetch({0: 5}, start_offset=3, max_wait_ms=0)
        await asyncio.sleep(0)
        assert not deletion.done()
        lab.follower(3).fetch({0: 5}, start_offset=4, max_wait_ms=0)
        result = await deletion
        assert (result.error_code, result.low_watermark) == (0, 3)

    lab.run(scenario)


def test_deletion_times_out(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated_records(lab)
        deletion = asyncio.create_task(delete(lab, 3))
        await until_it_waits(lab)
        lab.broker.timer.advance(1000)
        result = await deletion
        assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)

    lab.run(scenario)


def test_deletion_does_not_wait_for_dead_replicas(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated_records(lab)
        await lab.bury(3)
        lab.follower(2).fetch({0: 5}, start_offset=3, max_wait_ms=0)
        assert (await delete(lab, 3)).low_watermark == 3

    lab.run(scenario)


def test_deletion_fails_when_leadership_ends(lab: LeaderLab) -> None:
    async def scenario(lab: LeaderLab) -> None:
        await replicated_records(lab)
        deletion = asyncio.create_task(delete(lab, 3))
        await until_it_waits(lab)
        await lab.lead(leader=2, leader_epoch=LEADER_EPOCH + 1)
        assert (await deletion).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    lab.run(scenario)


# -- the throttle (KIP-73)


def test_a_throttled_partition_waits_and_the_others_do_not(
    make_broker: Callable[..., InMemoryBroker],
) -> None:
    async def scenario(lab: LeaderLab) -> None:
        throttled = {"leader_replication_throttled_replicas": "0:1"}
        await lab.lead(partitions=2, isr=(1, 3), **throttled)
        for partition in (0, 1):
            lab.append(partition=partition, size_bytes=5000)
        follower = lab.follower(2)
        first = follower.fetch({0: 0, 1: 0}, session_epoch=0)
        assert {index: bool(part.records) for index, part in parts(first).items()} == {0: True, 1: True}
        assert first is not None
        session = {"session_id": first.session_id, "max_wait_ms": 0}
        lab.append(partition=0, size_bytes=5000)
        lab.append(partition=1, size_bytes=5000)
        second = parts(follower.fetch({0: 1, 1: 1}, session_epoch=1, **session))
        assert {index for index, part in second.items() if part.records} == {1}
        assert parts(lab.follower(3).fetch({0: 1}))[0].records  # a replica in the ISR is never throttled
        lab.broker.timer.advance(20_000)
        third = parts(follower.fetch({1: 2}, session_epoch=2, **session))
        assert {index for index, part in third.items() if part.records} == {0}

    LeaderLab(make_broker({"leader.replication.throttled.rate": "1000"})).run(scenario)
