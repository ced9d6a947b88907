"""The groups of a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.client import cluster_snapshot
from tidelog.client.cluster_rates import GroupFacts
from tidelog.client.coordinators import ListedGroup
from tidelog.client.errors import UnsupportedApiError
from tidelog.client.quorum import Quorum
from tidelog.client.share_groups import ShareOffset
from tidelog.model.instants import MonotonicMs
from tidelog.model.topics import TopicPartition

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
