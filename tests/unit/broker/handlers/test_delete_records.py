from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerlab.in_memory_broker import OTHER_BROKER_ID, InMemoryBroker
from tidelog.model.errors import ErrorCode
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)


def delete(lab: InMemoryBroker, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
    """Returns (error, low watermark)."""
    wanted = DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])
    response = lab.call(DeleteRecordsRequest([wanted], 1000), 2)
    (answered,) = response.topics[0].partitions
    assert (response.topics[0].name, answered.partition_index) == (topic, partition)
    return answered.error_code, answered.low_watermark


def test_moves_the_log_start_offset_up_and_never_down(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.append("t", 10)
    assert delete(lab, "t", 4) == (0, 4)
    assert delete(lab, "t", 2) == (0, 4)
    assert lab.broker.hosted.leader_replica("t", 0).log.log_start_offset == 4
    assert delete(lab, "t", -1) == (0, 10)


@pytest.mark.parametrize("offset", [11, -2, 2**63 - 1])
def test_offsets_out_of_range(lab: InMemoryBroker, offset: int) -> None:
    lab.add_topic("t")
    lab.append("t", 10)
    assert delete(lab, "t", offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_partitions_of_other_brokers(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    lab.add_topic("elsewhere", leader=OTHER_BROKER_ID)
    assert delete(lab, "t", 0, partition=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(lab, "none", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(lab, "elsewhere", 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_compacted_and_internal_topics_keep_their_records(lab: InMemoryBroker) -> None:
    lab.add_topic("compacted", configs={"cleanup.policy": "compact"})
    lab.add_topic("both", configs={"cleanup.policy": "compact,delete"})
    lab.add_topic("__consumer_offsets")
    assert delete(lab, "compacted", -1) == (ErrorCode.POLICY_VIOLATION, -1)
    assert delete(lab, "both", -1) == (0, 0)
    assert delete(lab, "__consumer_offsets", -1) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_deleted_records_stay_deleted_after_a_restart(make_broker: Callable[..., InMemoryBroker]) -> None:
    lab = make_broker()
    lab.add_topic("t")
    lab.append("t", 10)
    delete(lab, "t", 7)
    lab.reopen()
    lab.add_topic("t")
    assert lab.broker.hosted.leader_replica("t", 0).core.log_start_offset == 7
