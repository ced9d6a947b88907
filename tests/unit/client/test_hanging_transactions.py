"""The choice of hanging transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidelog.client.coordinators import Transaction
from tidelog.client.hanging_transactions import PartitionProducer, late_producers, unknown_to_coordinators
from tidelog.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)
NOW_MS = 1_000_000
LATE = PartitionProducer(PLACE, 7, 3, 0, NOW_MS - 901, 0, 12)


@pytest.mark.parametrize(
    ("producer", "is_late"),
    [
        (LATE, True),
        (replace(LATE, last_timestamp_ms=NOW_MS - 900), False),
        (replace(LATE, start_offset=-1), False),
        (replace(LATE, start_offset=0), True),
    ],
)
def test_only_open_transactions_that_last_too_long_are_late(
    producer: PartitionProducer, is_late: bool
) -> None:
    assert late_producers([producer], NOW_MS, 900) == ([producer] if is_late else [])


def test_a_transaction_hangs_unless_its_coordinator_knows_the_partition() -> None:
    def known(*partitions: TopicPartition) -> dict[int, Transaction]:
        return {7: Transaction("id", 7, 3, "Ongoing", 900, 0, partitions)}

    assert unknown_to_coordinators([LATE], {}) == [LATE]
    assert unknown_to_coordinators([LATE], known(TopicPartition("t", 1))) == [LATE]
    assert unknown_to_coordinators([LATE], known(PLACE)) == []
    assert unknown_to_coordinators([LATE], {8: known(PLACE)[7]}) == [LATE]
