from __future__ import annotations

from brokerlab.in_memory_broker import OTHER_BROKER_ID, InMemoryBroker
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def end_of(
    lab: InMemoryBroker,
    epoch: int,
    *,
    current: int = -1,
    topic: str = "t",
    partition: int = 0,
    version: int = 4,
) -> tuple[int, int, int]:
    """Returns (error, epoch, end offset)."""
    asked = OffsetForLeaderPartition(partition, current, epoch)
    response = lab.call(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(topic, [asked])]), version)
    (answered,) = response.topics[0].partitions
    assert answered.partition == partition
    return answered.error_code, answered.leader_epoch, answered.end_offset


def test_end_offsets_of_epochs(lab: InMemoryBroker) -> None:
    lab.add_topic("t", leader_epoch=3)
    lab.append("t", 5)
    lab.add_topic("t", leader_epoch=6)
    lab.append("t", 2)
    assert end_of(lab, 3) == (0, 3, 5)
    assert end_of(lab, 5) == (0, 3, 5)
    assert end_of(lab, 6) == (0, 6, 7)
    assert end_of(lab, 6, version=2) == (0, 6, 7)


def test_unknown_epochs_have_no_end_offset(lab: InMemoryBroker) -> None:
    lab.add_topic("t", leader_epoch=3)
    assert end_of(lab, 4) == (0, -1, -1)
    assert end_of(lab, -1) == (0, -1, -1)


def test_the_current_epoch_is_checked(lab: InMemoryBroker) -> None:
    lab.add_topic("t", leader_epoch=3)
    assert end_of(lab, 3, current=3) == (0, 3, 0)
    assert end_of(lab, 3, current=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert end_of(lab, 3, current=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


def test_partitions_of_other_brokers(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.add_topic("elsewhere", leader=OTHER_BROKER_ID)
    assert end_of(lab, 0, partition=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of(lab, 0, topic="none") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of(lab, 0, topic="elsewhere") == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
