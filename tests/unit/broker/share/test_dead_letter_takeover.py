"""The states that a new leader reads, to continue the copies of dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share import dead_letter_copies
from tidelog.broker.share.dead_letter_copies import MAX_STATE_READS, DeadLetterTakeover
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.wire.messages.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)

TOPIC_ID = UUID(int=7)
ONE_GROUP = frozenset({"a"})


def replica(partition: int, leader_epoch: int = 3, *, is_leader: bool = True) -> Replica:
    core = SimpleNamespace(is_leader=is_leader, leader_epoch=leader_epoch)
    found = SimpleNamespace(topic_id=TOPIC_ID, topic_partition=TopicPartition("t", partition), core=core)
    return cast("Replica", found)


@dataclass
class States:
    """The share coordinator. A state is (group, partition); those that are absent get INVALID_REQUEST."""

    archiving: set[tuple[str, int]] = field(default_factory=set)
    failing: set[tuple[str, int]] = field(default_factory=set)
    reads: list[tuple[str, int]] = field(default_factory=list)
    most: int = 0

    async def read(self, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
        results = []
        for topic in request.topics:
            self.most = max(self.most, len(topic.partitions))
            for partition in topic.partitions:
                assert partition.leader_epoch == UNKNOWN_EPOCH, "the read must fence nobody"
                key = (request.group_id, partition.partition)
                self.reads.append(key)
                result = PartitionResult(partition.partition)
                if key in self.failing:
                    result.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                elif key in self.archiving:
                    result.state_batches = [
                        StateBatch(0, 4, DeliveryState.ACKNOWLEDGED, 1),
                        StateBatch(5, 5, DeliveryState.ARCHIVING, 1),
                    ]
                else:
                    result.error_code = ErrorCode.INVALID_REQUEST
                results.append(result)
        return ReadShareGroupStateResponse([ReadStateResult(TOPIC_ID, results)])

    async def write(self, request: Any) -> Any:
        raise AssertionError("a scan writes nothing")


class Lab:
    def __init__(self) -> None:
        self.states = States()
        self.used: list[SharePartitionKey] = []
        self.takeover = DeadLetterTakeover(self.states, lambda key, _: self.used.append(key))

    def scan(self, groups: frozenset[str], *replicas: Replica) -> list[tuple[str, int]]:
        """Returns the states that were read."""
        self.states.reads = []
        asyncio.run(self.takeover.scan(groups, replicas))
        return self.states.reads


def test_share_partitions_whose_records_wait_are_used() -> None:
    lab = Lab()
    lab.states.archiving = {("a", 1), ("b", 0), ("c", 0)}
    read = lab.scan(frozenset({"a", "b"}), replica(0), replica(1), replica(2, is_leader=False))
    assert sorted(read) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert set(lab.used) == {SharePartitionKey("a", TOPIC_ID, 1), SharePartitionKey("b", TOPIC_ID, 0)}


def test_a_state_is_read_once_in_a_leader_epoch() -> None:
    lab = Lab()
    assert lab.scan(ONE_GROUP, replica(0), replica(1)) == [("a", 0), ("a", 1)]
    assert not lab.scan(frozenset({"a"}), replica(0), replica(1))
    assert lab.scan(ONE_GROUP, replica(0, 4), replica(1)) == [("a", 0)]
    assert lab.scan(frozenset({"a", "b"}), replica(0, 4), replica(1)) == [("b", 0), ("b", 1)]
    assert not lab.scan(ONE_GROUP, replica(0, 4), replica(1))
    assert not lab.scan(ONE_GROUP, replica(0, 4, is_leader=False), replica(1))
    assert lab.scan(ONE_GROUP, replica(0, 4), replica(1)) == [("a", 0)]


def test_a_state_that_cannot_be_read_is_read_later() -> None:
    lab = Lab()
    lab.states.archiving = lab.states.failing = {("a", 1)}
    assert lab.scan(ONE_GROUP, replica(0), replica(1)) == [("a", 0), ("a", 1)]
    assert not lab.used
    lab.states.failing = set()
    assert lab.scan(ONE_GROUP, replica(0), replica(1)) == [("a", 1)]
    assert lab.used == [SharePartitionKey("a", TOPIC_ID, 1)]


def test_a_replica_that_leads_again_meanwhile_is_read_again() -> None:
    lab = Lab()
    changing = replica(0)
    read = lab.states.read

    async def read_and_change(request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
        changing.core.leader_epoch = 4
        return await read(request)

    lab.states.read = read_and_change  # type: ignore[method-assign]
    assert lab.scan(ONE_GROUP, changing) == [("a", 0)]
    assert lab.scan(ONE_GROUP, changing) == [("a", 0)]
    assert not lab.scan(ONE_GROUP, changing)


def test_reads_are_bounded() -> None:
    lab = Lab()
    replicas = [replica(at) for at in range(2 * MAX_STATE_READS + 10)]
    assert len(lab.scan(ONE_GROUP, *replicas)) == len(replicas)
    assert lab.states.most == MAX_STATE_READS == dead_letter_copies.MAX_STATE_READS
