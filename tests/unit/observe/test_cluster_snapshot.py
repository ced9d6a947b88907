"""The groups of a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.client.admin.brokers import Quorum
from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.offsets import ShareOffset
from tidelog.client.cluster import Partition, Topic
from tidelog.client.errors import UnsupportedApiError
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.observe import cluster_reader as cluster_snapshot
from tidelog.observe.rates import ClusterRates, GroupFacts

PLACE = TopicPartition("flights", 0)
EMPTY = cast(
    "Any",
    SimpleNamespace(
        describe=lambda: SimpleNamespace(brokers=(), controller_id=1, cluster_id=None),
        topics=lambda names: {},
        timeout_s=1.0,
    ),
)
"""A cluster without brokers and topics."""


def groups(monkeypatch: pytest.MonkeyPatch, *listed: ListedGroup) -> Any:  # a mapping to GroupFacts
    monkeypatch.setattr(cluster_snapshot, "list_groups", lambda *args: list(listed))
    monkeypatch.setattr(cluster_snapshot, "committed_offsets", lambda *args: {PLACE: 4})
    monkeypatch.setattr(cluster_snapshot, "describe_quorum", lambda cluster: Quorum(1, (1,)))
    return cluster_snapshot.take_snapshot(EMPTY, MonotonicMs(0)).groups


def test_ends_are_read_after_the_commits_that_are_compared_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other order, a group that keeps up would seem to be committed beyond the end of the log."""
    end = 0

    def commit(*args: object) -> dict[TopicPartition, int]:
        nonlocal end
        end += 4  # a record arrives, and the group reads it at once
        return {PLACE: end}

    monkeypatch.setattr(cluster_snapshot, "list_groups", lambda *args: [ListedGroup("g", "consumer", "", "")])
    monkeypatch.setattr(cluster_snapshot, "committed_offsets", commit)
    monkeypatch.setattr(cluster_snapshot, "describe_quorum", lambda cluster: Quorum(1, (1,)))
    monkeypatch.setattr(cluster_snapshot, "offsets_of_topics", lambda *args: {PLACE: end})
    partitions = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(3))
    topics = {"flights": Topic("flights", ZERO_TOPIC_ID, False, partitions)}
    view = SimpleNamespace(brokers=())
    cluster = cast("Any", SimpleNamespace(describe=lambda: view, topics=lambda names: topics))
    snapshot = cluster_snapshot.take_snapshot(cluster, MonotonicMs(0))
    (row,) = ClusterRates(None, snapshot).groups()
    assert (row.lag, row.beyond_end, row.uncommitted) == (0, 0, 2)


def test_a_share_group_has_start_offsets_and_the_lags_of_its_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = {PLACE: ShareOffset(7, None), TopicPartition("flights", 1): ShareOffset(None, 3)}
    monkeypatch.setattr(cluster_snapshot, "describe_share_offsets", lambda *args: offsets)
    found = groups(monkeypatch, ListedGroup("tasks", "share", "share", "Empty"))
    assert found == {"tasks": GroupFacts("share", "Empty", {PLACE: 7}, {TopicPartition("flights", 1): 3})}


def test_groups_are_shown_by_brokers_that_do_not_know_types_or_share_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka before 3.8 does not state types, and Kafka 4.0 lists share groups without their offsets."""

    def unsupported(*args: object) -> object:
        raise UnsupportedApiError("the broker does not serve DescribeShareGroupOffsets")

    monkeypatch.setattr(cluster_snapshot, "describe_share_offsets", unsupported)
    listed = (ListedGroup("old", "", "consumer", "Stable"), ListedGroup("tasks", "share", "share", "Empty"))
    assert groups(monkeypatch, *listed) == {
        "old": GroupFacts("", "Stable", {PLACE: 4}),
        "tasks": GroupFacts("share", "Empty", {}, {}),
    }
