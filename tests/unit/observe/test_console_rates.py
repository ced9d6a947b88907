"""Rates of topics from two readings of their end offsets."""

from __future__ import annotations

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import TopicPartition
from tidelog.observe.rates import EndOffsets, records_per_second


def ends(at_ms: int, **offsets: int) -> EndOffsets:
    """Returns end offsets of partitions that are named as in `flights_0`."""
    found = {TopicPartition(name[:-2], int(name[-1])): offset for name, offset in offsets.items()}
    return EndOffsets(MonotonicMs(at_ms), found)


def test_a_rate_sums_the_partitions_that_both_readings_know() -> None:
    before = ends(1_000, flights_0=10, flights_1=10)
    now = ends(3_000, flights_0=30, flights_1=20, flights_2=1_000)
    assert records_per_second(before, now) == {"flights": 15.0}


def test_without_a_former_reading_there_is_no_rate() -> None:
    assert records_per_second(None, ends(1_000, flights_0=10)) == {}
    assert records_per_second(ends(1_000, flights_0=10), ends(1_000, flights_0=20)) == {}


def test_a_topic_that_was_created_again_has_no_negative_rate() -> None:
    assert records_per_second(ends(0, flights_0=500), ends(1_000, flights_0=3)) == {"flights": 0.0}
