"""The checks of applications notice each broken promise."""

from __future__ import annotations

import pytest

from sim.deliveries import GroupOffsets, GroupReads, SentRecords, sent_value
from sim.histories import TransactionHistory
from sim.invariants import CommittedLog
from sim.share_members import ShareDeliveries
from tidelog.broker.share.deliveries import AcquiredRange
from tidelog.group_coordinator.groups.offset_commits import (
    CommittedOffset,
    GroupPartition,
    offset_record,
)
from tidelog.kernel.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record

PLACE = TopicPartition("events", 0)
MEMBER = "m"


class Checks:
    """The histories over one log of batches with two records each."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.log = CommittedLog()
        self.sent = SentRecords(self.fail)
        transactions = TransactionHistory(self.fail)
        self.reads = GroupReads("g", self.fail, self.log_of, {}, transactions, reads_committed=False)
        self.offsets = GroupOffsets()
        self.offsets.groups["g"] = self.reads
        self.shares = ShareDeliveries("s", self.fail, self.log_of, transactions, reads_committed=False)

    def fail(self, invariant: str, details: str) -> None:
        self.broken.append(invariant)

    def log_of(self, topic_partition: TopicPartition) -> CommittedLog:
        return self.log

    def append(self, *numbers: int) -> None:
        base = self.log.end_offset
        records = [Record(base + at, -1, None, sent_value("p", number)) for at, number in enumerate(numbers)]
        data = bytes(build_batch(records))
        header = parse_header(data)
        self.log.base_offsets.append(header.base_offset)
        self.log.batches.append((header, data))
        self.sent.batch_committed(PLACE, header, data)

    def commit(self, offset: int) -> None:
        committed = CommittedOffset(offset, -1, "", WallMs(1))
        record = offset_record(GroupPartition("g", *PLACE), committed)
        data = bytes(build_batch([Record(0, -1, record.key, record.value)]))
        self.offsets.batch_committed(parse_header(data), data)

    def deliver(self, first: int, last: int, count: int, epoch: int) -> None:
        self.shares.acquired("broker-1", PLACE, epoch, MEMBER, [AcquiredRange(first, last, count)], 2)


@pytest.fixture
def checks() -> Checks:
    found = Checks()
    found.append(1, 2)
    found.append(3, 4)
    return found


def test_a_correct_run_breaks_nothing(checks: Checks) -> None:
    checks.sent.was_acknowledged(PLACE, sent_value("p", 3), 2)
    checks.reads.was_delivered(PLACE, 0, sent_value("p", 1), MEMBER)
    for offset in range(3):
        checks.reads.was_dealt_with(PLACE, offset)
    checks.commit(3)
    assert checks.reads.unread(PLACE) == 3
    checks.deliver(0, 1, 1, epoch=5)
    checks.shares.was_accepted("broker-1", PLACE, MEMBER, 0, 1)
    checks.deliver(0, 1, 1, epoch=4)  # by a former leader that does not know of its deposition
    checks.deliver(2, 3, 2, epoch=5)
    checks.shares.was_delivered(PLACE, 2, 3)
    checks.shares.check_end(PLACE)
    assert checks.shares.unfinished(PLACE, 2) == 2
    assert not checks.broken


def test_duplicates_and_other_orders_of_a_producer_are_noticed(checks: Checks) -> None:
    checks.append(4)
    checks.append(7)
    checks.append(6)
    assert checks.broken == ["idempotent producer, no duplicates", "idempotent producer, order is kept"]


@pytest.mark.parametrize(("number", "offset"), [(5, 4), (3, 1)])
def test_an_acknowledged_record_that_is_not_stored_there_is_noticed(
    checks: Checks, number: int, offset: int
) -> None:
    checks.sent.was_acknowledged(PLACE, sent_value("p", number), offset)
    assert checks.broken == ["everything acknowledged is committed"]


def test_a_record_that_is_not_committed_is_noticed(checks: Checks) -> None:
    checks.reads.was_delivered(PLACE, 2, sent_value("p", 9), MEMBER)
    assert checks.broken == ["consumers get records that are committed"]


def test_a_commit_that_passes_an_unread_record_is_noticed(checks: Checks) -> None:
    for offset in (0, 2):
        checks.reads.was_dealt_with(PLACE, offset)
    checks.commit(3)
    assert checks.broken == ["committed offsets never pass unread records"]


def test_a_delivery_that_is_not_committed_is_noticed(checks: Checks) -> None:
    checks.shares.was_delivered(PLACE, 3, 4)
    assert checks.broken == ["share groups deliver committed records"]


def test_an_accepted_record_that_comes_again_is_noticed(checks: Checks) -> None:
    checks.deliver(0, 1, 1, epoch=5)
    checks.shares.was_accepted("broker-1", PLACE, MEMBER, 0, 0)
    checks.deliver(0, 0, 1, epoch=5)
    assert checks.broken == ["an accepted record never comes again"]


def test_a_record_that_is_delivered_too_often_is_noticed(checks: Checks) -> None:
    checks.deliver(0, 1, 3, epoch=5)
    assert set(checks.broken) == {"no record is delivered too often"}


def test_a_lost_record_of_a_share_group_is_noticed(checks: Checks) -> None:
    checks.deliver(0, 3, 1, epoch=5)
    checks.shares.was_offered(PLACE, 0, 3)
    checks.shares.was_refused(PLACE, 3, 3)
    checks.shares.check_end(PLACE)
    assert checks.broken == ["no record of a share group is lost"]
