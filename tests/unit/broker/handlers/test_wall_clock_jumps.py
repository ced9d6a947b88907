"""The wall clock of a broker jumps by hours in the middle of work."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.kernel.clock import SLEW_DIVISOR
from tidelog.model.errors import ErrorCode
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

HOUR_MS = 3_600_000
HOURLY = {"retention.ms": str(HOUR_MS), "file.delete.delay.ms": "60000"}


def jump(lab: InMemoryBroker, by_ms: int) -> None:
    lab.clock.set_wall(lab.clock.wall_ms() + by_ms)


def retained(lab: InMemoryBroker) -> int:
    """Applies retention and returns the number of records that remain."""
    lab.runner.run(lab.broker.housekeeping.apply_retention())
    log = lab.broker.hosted.leader_replica("t", 0).log
    return log.log_end_offset - log.log_start_offset


def append_three(lab: InMemoryBroker) -> None:
    for _ in range(3):
        lab.append("t")
    replica = lab.broker.hosted.leader_replica("t", 0)
    assert replica.core.high_watermark == replica.log.log_end_offset


@pytest.mark.parametrize("by_hours", [6, 1000])
def test_a_jump_forward_deletes_no_records(lab: InMemoryBroker, by_hours: int) -> None:
    lab.add_topic("t", configs=HOURLY)
    append_three(lab)
    jump(lab, by_hours * HOUR_MS)
    assert retained(lab) == 3
    append_three(lab)  # with timestamps of the new time
    lab.clock.advance(HOUR_MS // 2)
    assert retained(lab) == 6
    jump(lab, -by_hours * HOUR_MS)
    assert retained(lab) == 6


def test_retention_follows_the_wall_clock_gradually(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=HOURLY)
    append_three(lab)
    jump(lab, 6 * HOUR_MS)
    lab.clock.advance(HOUR_MS * SLEW_DIVISOR // (SLEW_DIVISOR + 1) - 1_000)
    assert retained(lab) == 3
    lab.clock.advance(2_000)
    assert retained(lab) == 0


def test_a_jump_back_delays_retention_by_no_more_than_the_jump(lab: InMemoryBroker) -> None:
    lab.add_topic("t", configs=HOURLY)
    append_three(lab)
    jump(lab, -6 * HOUR_MS)
    lab.clock.advance(6 * HOUR_MS)
    assert retained(lab) == 3
    lab.clock.advance(HOUR_MS + 2_000)
    assert retained(lab) == 0


def test_records_after_a_correction_backwards_are_not_old(lab: InMemoryBroker) -> None:
    """The broker started with a clock that was 6 hours ahead, and the new records have true timestamps."""
    lab.add_topic("t", configs=HOURLY)
    jump(lab, -6 * HOUR_MS)
    append_three(lab)
    lab.clock.advance(60_000)
    assert retained(lab) == 3
    lab.clock.advance(HOUR_MS)
    assert retained(lab) == 0


@pytest.mark.parametrize("by_ms", [-6 * HOUR_MS, 6 * HOUR_MS])
def test_the_space_of_deleted_records_becomes_free(lab: InMemoryBroker, by_ms: int) -> None:
    lab.add_topic("t", configs=HOURLY)
    append_three(lab)
    lab.clock.advance(2 * HOUR_MS)
    assert retained(lab) == 0
    jump(lab, by_ms)
    lab.clock.advance(60_000)
    directory = Path(lab.broker.hosted.leader_replica("t", 0).log.directory.path)
    assert len(list(directory.glob("*.log"))) > 1
    lab.runner.run(lab.broker.housekeeping.remove_deleted_files())
    assert len(list(directory.glob("*.log"))) == 1


@pytest.mark.parametrize("by_ms", [-6 * HOUR_MS, 6 * HOUR_MS])
def test_records_are_flushed_in_time(lab: InMemoryBroker, by_ms: int) -> None:
    lab.add_topic("t", configs={"flush.ms": "1000"})
    storage = lab.broker.hosted.leader_replica("t", 0).storage
    lab.append("t")
    jump(lab, by_ms)
    lab.clock.advance(1_000)
    lab.runner.run(lab.broker.housekeeping.flush())
    assert storage.recovery_point == 1
    lab.append("t")
    lab.clock.advance(1_000)
    lab.runner.run(lab.broker.housekeeping.flush())
    assert storage.recovery_point == 2


def produced(lab: InMemoryBroker, timestamp_ms: int, compression: int = 0) -> int:
    """Produces a record and returns the error code."""
    batch = build_batch([Record(0, timestamp_ms, None, b"x", [])], compression=compression)
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, bytes(batch))])]
    answer = lab.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=data), 9)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


@pytest.mark.parametrize("compression", [0, 4])
def test_records_with_the_time_before_a_jump_back_are_still_taken(
    lab: InMemoryBroker, compression: int
) -> None:
    lab.add_topic("t")
    producers_clock_ms = lab.clock.wall_ms()
    jump(lab, -6 * HOUR_MS)
    assert produced(lab, producers_clock_ms, compression) == ErrorCode.NONE
    assert produced(lab, producers_clock_ms + 2 * HOUR_MS, compression) != ErrorCode.NONE
    jump(lab, 6 * HOUR_MS)
    assert produced(lab, producers_clock_ms + 2 * HOUR_MS) == ErrorCode.INVALID_TIMESTAMP


def test_a_correction_counts_at_once(lab: InMemoryBroker) -> None:
    lab.add_topic("t")
    producers_clock_ms = lab.clock.wall_ms() + 6 * HOUR_MS
    assert produced(lab, producers_clock_ms) == ErrorCode.INVALID_TIMESTAMP
    jump(lab, 6 * HOUR_MS)
    assert produced(lab, producers_clock_ms) == ErrorCode.NONE
