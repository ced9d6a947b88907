"""The lag of a group, computed from the offsets that the partition's leader reports."""

from __future__ import annotations

import pytest

from tidelog.group_coordinator.metrics import TransactionsSummary
from tidelog.group_coordinator.shards.lag import lag_of, transactions_of
from tidelog.group_coordinator.transactions.transaction import Transaction, TransactionStatus
from tidelog.group_coordinator.transactions.transaction_core import TransactionCore
from tidelog.model.instants import WallMs
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets
from tidelog.settings.broker_settings import BrokerSettings

NOW_MS = WallMs(1_000_000)


@pytest.mark.parametrize(
    ("committed", "offsets", "lag", "seconds"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), 10, 2.5, id="behind"),
        pytest.param(100, PartitionOffsets(0, 100, 100, -1), 0, 0.0, id="caught up"),
        pytest.param(90, PartitionOffsets(0, 100, 95, NOW_MS - 1_000), 5, 1.0, id="open transaction"),
        pytest.param(95, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), 0, 0.0, id="only an open one"),
        pytest.param(10, PartitionOffsets(40, 100, 100, NOW_MS - 4_000), 60, 4.0, id="deleted before"),
        pytest.param(120, PartitionOffsets(0, 100, 100, -1), 0, 0.0, id="ahead of the log"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS + 500), 10, 0.0, id="clock of the producer"),
        pytest.param(90, PartitionOffsets(0, 100, 100, -1), 10, 0.0, id="time unknown"),
    ],
)
def test_lag(committed: int, offsets: PartitionOffsets, lag: int, seconds: float) -> None:
    found = lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS)
    assert found[:7] == ("g", "t", 1, committed, lag, seconds, None)


@pytest.mark.parametrize(
    ("committed", "offsets", "expected"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), None, id="the same"),
        pytest.param(90, PartitionOffsets(0, 100, 95, NOW_MS - 1_000), (10, 1.0), id="open transaction"),
        pytest.param(95, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), (5, 9.0), id="only an open one"),
        pytest.param(97, PartitionOffsets(0, 100, 95, NOW_MS - 9_000), (3, 9.0), id="read beyond it"),
        pytest.param(95, PartitionOffsets(0, 100, 95, -1), (5, 0.0), id="time unknown"),
        pytest.param(100, PartitionOffsets(0, 100, 95, -1), None, id="all read"),
        pytest.param(10, PartitionOffsets(40, 100, 70, NOW_MS), (60, 0.0), id="deleted before"),
    ],
)
def test_the_lag_of_read_uncommitted_consumers(
    committed: int, offsets: PartitionOffsets, expected: tuple[int, float] | None
) -> None:
    found = lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS)
    assert found.read_uncommitted == expected
    assert found.greatest == (expected[0] if expected else found.lag)


@pytest.mark.parametrize(
    ("committed", "offsets", "expires"),
    [
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500, 10_000), 7.5, id="unread"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 60_000, 10_000), 0.0, id="overdue"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS, 0), 0.0, id="kept for no time"),
        pytest.param(100, PartitionOffsets(0, 100, 100, -1, 10_000), None, id="all read"),
        pytest.param(90, PartitionOffsets(0, 100, 100, NOW_MS - 2_500), None, id="kept for ever"),
        pytest.param(90, PartitionOffsets(0, 100, 100, -1, 10_000), None, id="time unknown"),
    ],
)
def test_when_unread_records_expire(committed: int, offsets: PartitionOffsets, expires: float | None) -> None:
    assert lag_of("g", TopicPartition("t", 1), committed, offsets, NOW_MS).expires_seconds == expires


def test_transactions_are_counted_by_state() -> None:
    def summary(*transactions: Transaction) -> TransactionsSummary:
        core = TransactionCore(0, BrokerSettings.parse({}))
        core.transactions.update({str(number): one for number, one in enumerate(transactions)})
        return transactions_of([core])

    assert summary().oldest_open_ms is None
    ongoing = Transaction(1, 0, 60_000, TransactionStatus.ONGOING, start_ms=NOW_MS)
    found = summary(ongoing, ongoing._replace(start_ms=NOW_MS - 5), Transaction(2, 0, 60_000, start_ms=1))
    assert found.oldest_open_ms == NOW_MS - 5
    assert found.oldest_ending_ms is None
    ending = ongoing._replace(status=TransactionStatus.PREPARE_COMMIT, start_ms=1, update_ms=NOW_MS - 7)
    assert summary(ending, ending._replace(update_ms=NOW_MS)).oldest_ending_ms == NOW_MS - 7
    assert found.counts["Ongoing"] == 2
    assert found.counts["Empty"] == 1
    assert found.counts["PrepareAbort"] == 0
