"""Rates, missing replicas and lag from two snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import TopicPartition
from tidelog.observe.rates import (
    BrokerFacts,
    ClusterRates,
    GroupFacts,
    PartitionFacts,
    Snapshot,
    catch_up_s,
    per_second,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BEFORE = Snapshot(
    MonotonicMs(1_000),
    "1",
    {1: BrokerFacts("h:1", None, 700), 2: BrokerFacts("h:2", None, 100)},
    {
        T0: PartitionFacts(1, (1, 2), (1, 2), 100, 1_000),
        T1: PartitionFacts(2, (2, 3), (2,), 50, 500),
        U0: PartitionFacts(-1, (3,), ()),
    },
    {"g": GroupFacts("consumer", "Stable", {T0: 40, T1: 50}), "idle": GroupFacts("classic", "Empty", {})},
)
AFTER = replace(
    BEFORE,
    at_ms=MonotonicMs(3_000),
    partitions={
        **BEFORE.partitions,
        T0: PartitionFacts(1, (1, 2), (1, 2), 120, 1_600),
        T1: PartitionFacts(2, (2, 3), (2,), 50, 400),  # retention deleted a segment
    },
    groups={
        "g": GroupFacts("consumer", "Stable", {T0: 80, T1: 50}),
        "idle": GroupFacts("classic", "Empty", {}),
    },
)


def test_rates_of_topics_and_brokers() -> None:
    rates = ClusterRates(BEFORE, AFTER)
    u, t = rates.topics()  # the one with a partition that is offline comes first
    assert (u.topic, u.offline, u.missing_replicas, u.records_per_s) == ("u", 1, 1, None)
    assert (t.topic, t.partitions, t.missing_replicas) == ("t", 2, 1)
    assert (t.size_bytes, t.records_per_s, t.bytes_per_s) == (2_000, 10.0, 300.0)
    one, two, dead = rates.brokers()
    assert (one.leaders, one.replicas, one.missing_replicas) == (1, 1, 0)
    assert (one.records_per_s, one.bytes_per_s, one.disk_bytes) == (10.0, 300.0, 700)
    assert (two.leaders, two.replicas, two.records_per_s, two.bytes_per_s) == (1, 2, 0.0, None)
    assert (dead.broker_id, dead.is_alive, dead.replicas, dead.missing_replicas) == (3, False, 2, 2)
    summary = rates.summary()
    assert (summary.topics, summary.partitions, summary.missing_replicas, summary.offline) == (2, 3, 2, 1)
    assert summary.records_per_s == 10.0


def test_a_group_that_reads_faster_than_records_arrive_catches_up() -> None:
    group, idle = ClusterRates(BEFORE, AFTER).groups()
    assert (group.group, group.lag, group.max_lag, group.records_per_s) == ("g", 40, 40, 20.0)
    assert group.catch_up_s == 4.0  # 40 records at 20 - 10 a second
    assert (idle.lag, idle.records_per_s, idle.catch_up_s) == (None, None, None)


def test_a_commit_beyond_the_end_is_counted_and_makes_up_for_no_unread_record() -> None:
    groups = {
        "both": GroupFacts("consumer", "Stable", {T0: 80, T1: 99}, uncommitted=3),
        "beyond": GroupFacts("consumer", "Stable", {T1: 99}),
    }
    both, beyond = ClusterRates(None, replace(AFTER, groups=groups)).groups()
    assert (both.lag, both.max_lag, both.uncommitted, both.beyond_end) == (40, 40, 3, 1)
    assert (beyond.lag, beyond.max_lag, beyond.uncommitted, beyond.beyond_end) == (0, -49, 0, 1)


def test_the_first_snapshot_has_no_rates() -> None:
    rates = ClusterRates(None, AFTER)
    assert {row.records_per_s for row in (*rates.topics(), *rates.brokers(), *rates.groups())} == {None}
    assert rates.groups()[0].lag == 40


@pytest.mark.parametrize(
    ("lag", "consumed", "produced", "expected"),
    [(0, 0, 5, 0), (10, 5, None, 2), (10, 5, 5, None), (10, None, None, None), (None, 5, 0, None)],
)
def test_catching_up(
    lag: int | None, consumed: float | None, produced: float | None, expected: float | None
) -> None:
    assert catch_up_s(lag, consumed, produced) == expected


@given(st.none() | st.integers(0), st.none() | st.integers(0), st.integers(-10, 10**9))
def test_a_rate_is_unknown_or_explains_the_growth(
    before: int | None, after: int | None, elapsed_ms: int
) -> None:
    rate = per_second(before, after, elapsed_ms)
    if rate is None:
        assert before is None or after is None or elapsed_ms <= 0 or after < before
    else:
        assert before is not None and after is not None
        assert rate * elapsed_ms / 1000 == pytest.approx(after - before)


def test_the_lag_of_a_share_group_is_what_its_coordinator_states() -> None:
    """A share group may have read records after its start offset, so the end of the log does not tell it."""
    facts = GroupFacts("share", "Stable", {T0: 80}, {T0: 5, T1: 3})
    (row,) = ClusterRates(BEFORE, replace(AFTER, groups={"tasks": facts})).groups()
    assert (row.group, row.group_type, row.partitions, row.lag, row.max_lag) == ("tasks", "share", 2, 8, 5)


def test_groups_have_their_types() -> None:
    assert [row.group_type for row in ClusterRates(BEFORE, AFTER).groups()] == ["consumer", "classic"]
