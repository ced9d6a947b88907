"""Lag of a partition from what its leader tells."""

from __future__ import annotations

import pytest
from tidelog.group_coordinator.runtime.lag import lag_of
from tidelog.model.topics import TopicPartition
from tidelog.rpc.coordinator_session import PartitionOffsets

NOW_MS = 1_000_000


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
    assert found == ("g", "t", 1, committed, lag, seconds)
