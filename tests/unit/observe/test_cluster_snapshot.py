"""Snapshots of a cluster: the views of several brokers are merged, and two snapshots give rates, missing
replicas and lag.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.address import Address
from tidelog.client.admin.brokers import LogDir, Quorum
from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.offsets import ShareOffset
from tidelog.client.cluster import Broker, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.client.errors import UnsupportedApiError
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.observe import cluster_reader
from tidelog.observe.availability import merge_views
from tidelog.observe.cluster_reader import ClusterReader
from tidelog.observe.rates import (
    BrokerFacts,
    ClusterRates,
    EndOffsets,
    GroupFacts,
    PartitionFacts,
    Snapshot,
    catch_up_s,
    per_second,
    records_per_second,
)

PLACE = TopicPartition("flights", 0)


def cluster_of(topics: dict[str, Topic]) -> Any:  # a fake of Cluster
    """Returns a cluster without brokers."""
    view = SimpleNamespace(brokers=(), controller_id=1, cluster_id=None)
    return SimpleNamespace(describe=lambda: view, describe_with_topics=lambda: (view, topics), timeout_s=1.0)


def facts_of(
    place: TopicPartition,
    leader: int,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    *,
    end: int | None = None,
    size_bytes: int | None = None,
) -> PartitionFacts:
    partition = Partition(place.partition, leader, 0, replicas, isr, ())
    return PartitionFacts(place.topic, partition, high_watermark=end, size_bytes=size_bytes)


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BEFORE = Snapshot(
    MonotonicMs(1_000),
    "1",
    {1: BrokerFacts("h:1", None, 700), 2: BrokerFacts("h:2", None, 100)},
    {
        T0: facts_of(T0, 1, (1, 2), (1, 2), end=100, size_bytes=1_000),
        T1: facts_of(T1, 2, (2, 3), (2,), end=50, size_bytes=500),
        U0: facts_of(U0, -1, (3,), ()),
    },
    {"g": GroupFacts("consumer", "Stable", {T0: 40, T1: 50}), "idle": GroupFacts("classic", "Empty", {})},
)
AFTER = replace(
    BEFORE,
    at_ms=MonotonicMs(3_000),
    partitions={
        **BEFORE.partitions,
        T0: facts_of(T0, 1, (1, 2), (1, 2), end=120, size_bytes=1_600),
        T1: facts_of(T1, 2, (2, 3), (2,), end=50, size_bytes=400),  # retention deleted a segment
    },
    groups={
        "g": GroupFacts("consumer", "Stable", {T0: 80, T1: 50}),
        "idle": GroupFacts("classic", "Empty", {}),
    },
)


def test_a_broker_that_registers_during_a_snapshot_is_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = SimpleNamespace(brokers=(Broker(1, Address("h", 1), None),), controller_id=1, cluster_id=None)
    second = SimpleNamespace(brokers=(*first.brokers, Broker(2, Address("h", 2), None)))
    cluster: Any = SimpleNamespace(
        describe=lambda: second, describe_with_topics=lambda: (first, {}), timeout_s=1.0
    )
    monkeypatch.setattr(cluster_reader, "list_groups", lambda *args: [])
    monkeypatch.setattr(cluster_reader, "describe_quorum", lambda cluster: Quorum(1, (1,)))
    monkeypatch.setattr(
        cluster_reader,
        "describe_log_dirs",
        lambda cluster, brokers, topics, silent: [
            LogDir(each, "/data", ErrorCode.NONE, 5, 5, ()) for each in brokers
        ],
    )
    assert ClusterReader(cluster).snapshot(MonotonicMs(0)).brokers.keys() == {1}


def groups(monkeypatch: pytest.MonkeyPatch, *listed: ListedGroup) -> Any:  # a mapping to GroupFacts
    monkeypatch.setattr(cluster_reader, "list_groups", lambda *args: list(listed))
    monkeypatch.setattr(cluster_reader, "committed_offsets", lambda *args: {PLACE: 4})
    monkeypatch.setattr(cluster_reader, "describe_quorum", lambda cluster: Quorum(1, (1,)))
    return ClusterReader(cluster_of({})).snapshot(MonotonicMs(0)).groups


def test_ends_are_read_after_the_commits_that_are_compared_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other order, a group that keeps up would seem to be committed beyond the end of the log."""
    end = 0

    def commit(*args: object) -> dict[TopicPartition, int]:
        nonlocal end
        end += 4  # a record arrives, and the group reads it at once
        return {PLACE: end}

    monkeypatch.setattr(cluster_reader, "list_groups", lambda *args: [ListedGroup("g", "consumer", "", "")])
    monkeypatch.setattr(cluster_reader, "committed_offsets", commit)
    monkeypatch.setattr(cluster_reader, "describe_quorum", lambda cluster: Quorum(1, (1,)))
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, silent: {PLACE: end})
    partitions = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(3))
    topics = {"flights": Topic("flights", ZERO_TOPIC_ID, False, partitions)}
    snapshot = ClusterReader(cluster_of(topics)).snapshot(MonotonicMs(0))
    (row,) = ClusterRates(None, snapshot).groups()
    assert (row.lag, row.beyond_end, row.uncommitted) == (0, 0, 2)


def test_a_share_group_has_start_offsets_and_the_lags_of_its_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = {PLACE: ShareOffset(7, None), TopicPartition("flights", 1): ShareOffset(None, 3)}
    monkeypatch.setattr(cluster_reader, "describe_share_offsets", lambda *args: offsets)
    found = groups(monkeypatch, ListedGroup("tasks", "share", "share", "Empty"))
    assert found == {"tasks": GroupFacts("share", "Empty", {PLACE: 7}, {TopicPartition("flights", 1): 3})}


def test_groups_are_shown_by_brokers_that_do_not_know_types_or_share_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka before 3.8 does not state types, and Kafka 4.0 lists share groups without their offsets."""

    def unsupported(*args: object) -> object:
        raise UnsupportedApiError("the broker does not serve DescribeShareGroupOffsets")

    monkeypatch.setattr(cluster_reader, "describe_share_offsets", unsupported)
    listed = (ListedGroup("old", "", "consumer", "Stable"), ListedGroup("tasks", "share", "share", "Empty"))
    assert groups(monkeypatch, *listed) == {
        "old": GroupFacts("", "Stable", {PLACE: 4}),
        "tasks": GroupFacts("share", "Empty", {}, {}),
    }


def seen(isr: tuple[int, ...], epoch: int = 1, leader: int = 0) -> dict[str, Topic]:
    partition = Partition(0, leader, epoch, (0, 1, 2), isr, ())
    return {"t": Topic("t", UUID(int=1), False, (partition,))}


def test_the_least_isr_of_the_newest_epoch_counts() -> None:
    (merged,) = merge_views([seen((0, 1, 2)), seen((1, 2), 2, 1), seen((1, 2, 0), 2, 1)], {"t": 2}, {})
    assert (merged.leader, merged.isr, merged.lacking) == (1, {1, 2}, (0,))


def test_an_old_view_does_not_hide_that_a_replica_is_back() -> None:
    (merged,) = merge_views([seen((0, 1), 1), seen((0, 1, 2), 2)], {"t": 2}, {})
    assert merged.lacking == ()


def test_topics_being_deleted_are_left_out() -> None:
    assert merge_views([seen((0,))], {}, {}) == []


def test_replicas_that_are_being_added_are_distinguished() -> None:
    (merged,) = merge_views([seen((0, 1))], {"t": 5}, {("t", 0): (2,)})
    assert (merged.lacking, merged.needed_isr) == ((), 2)


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
    assert (dead.broker_id, dead.role, dead.replicas, dead.missing_replicas) == (3, "dead", 2, 2)
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
