"""The lags of groups, from answers that come one after the other."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.offsets import ShareOffset
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.client.errors import UnsupportedApiError
from tidelog.console import group_reader
from tidelog.console.group_reader import GroupReader
from tidelog.console.readings import SilentBrokers
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.topics import ZERO_TOPIC_ID, TopicPartition
from tidelog.observe import cluster_reader


def reader() -> GroupReader:
    return GroupReader(lambda: WallMs(0), lambda: MonotonicMs(0), SilentBrokers(lambda: MonotonicMs(0)))


PLACE = TopicPartition("flights", 0)


@pytest.mark.parametrize(("stable", "expected"), [(12, (7, 7)), (8, (7, 5))])
def test_records_between_two_answers_are_no_difference_of_isolation_levels(
    monkeypatch: pytest.MonkeyPatch, stable: int, expected: tuple[int, int]
) -> None:
    answers = iter([{PLACE: stable}, {PLACE: 10}])
    group = ListedGroup("spotters", "consumer", "consumer", "Stable")
    monkeypatch.setattr(group_reader, "list_groups", lambda *args, silent: [group])
    offsets = {"spotters": {PLACE: 3}}
    monkeypatch.setattr(group_reader, "committed_offsets_of_groups", lambda *args, silent: offsets)
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, **options: next(answers))
    cluster = Mock(Cluster, topics=lambda names: {})
    (row,) = reader().groups(cluster).groups
    assert (row.lag_uncommitted, row.lag_committed) == expected


def test_the_groups_with_the_greatest_lag_come_first_and_none_is_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = [ListedGroup(f"g{number:04}", "consumer", "consumer", "Stable", 1) for number in range(700)]
    # The last one by name lags most, and the first one is committed beyond the end.
    offsets = {group.group_id: {PLACE: 749 - number} for number, group in enumerate(listed)}
    asked: list[int] = []

    def committed(cluster: object, groups: list[ListedGroup], *, silent: set[int]) -> dict[str, object]:
        asked.append(len(groups))
        return {group.group_id: offsets[group.group_id] for group in groups}

    partitions = tuple(Partition(index, 1, 0, (1,), (1,), ()) for index in range(3))
    topics = {"flights": Topic("flights", ZERO_TOPIC_ID, False, partitions)}
    monkeypatch.setattr(group_reader, "list_groups", lambda *args, silent: listed)
    monkeypatch.setattr(group_reader, "committed_offsets_of_groups", committed)
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, **options: {PLACE: 700})
    found = reader().groups(Mock(Cluster, topics=lambda names: topics))
    assert [row.group.group_id for row in found.groups[:2]] == ["g0699", "g0698"]
    assert found.groups[0].lag_uncommitted == 650
    assert {row.uncommitted_count for row in found.groups} == {2}
    assert (len(found.groups), found.more_groups, found.without_lag) == (500, 200, 0)
    assert asked == [200, 200, 200, 100]


def test_a_commit_beyond_the_end_does_not_make_up_for_unread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicPartition("flights", 1)
    group = ListedGroup("spotters", "consumer", "consumer", "Stable", 1)
    offsets = {"spotters": {PLACE: 150, other: 3}}
    monkeypatch.setattr(group_reader, "list_groups", lambda *args, silent: [group])
    monkeypatch.setattr(group_reader, "committed_offsets_of_groups", lambda *args, silent: offsets)
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, **options: {PLACE: 101, other: 10})
    (row,) = reader().groups(Mock(Cluster, topics=lambda names: {})).groups
    assert (row.lag_uncommitted, row.beyond_end_count) == (7, 1)


@pytest.mark.parametrize(("lags", "expected"), [((2, 3), 5), ((2, None), 2), ((None, None), None)])
def test_the_lag_of_a_share_group_is_what_its_coordinator_states(
    monkeypatch: pytest.MonkeyPatch, lags: tuple[int | None, int | None], expected: int | None
) -> None:
    group = ListedGroup("tasks", "share", "share", "Empty")
    offsets = {TopicPartition("flights", at): ShareOffset(7, lag) for at, lag in enumerate(lags)}
    monkeypatch.setattr(group_reader, "list_groups", lambda *args, silent: [group])
    monkeypatch.setattr(cluster_reader, "describe_share_offsets", lambda *args: offsets)
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, **options: {})
    cluster = Mock(Cluster, topics=lambda names: {})
    (row,) = reader().groups(cluster).groups
    assert (row.lag_uncommitted, row.lag_committed) == (expected, None)


def test_the_list_has_share_groups_of_a_broker_that_does_not_serve_their_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka 4.0 is such a broker."""

    def unsupported(*args: object) -> object:
        raise UnsupportedApiError("the broker does not serve DescribeShareGroupOffsets")

    group = ListedGroup("tasks", "share", "share", "Empty")
    monkeypatch.setattr(group_reader, "list_groups", lambda *args, silent: [group])
    monkeypatch.setattr(cluster_reader, "describe_share_offsets", unsupported)
    monkeypatch.setattr(cluster_reader, "offsets_of_topics", lambda *args, **options: {})
    cluster = Mock(Cluster, topics=lambda names: {})
    (row,) = reader().groups(cluster).groups
    assert (row.group, row.lag_uncommitted, row.lag_committed) == (group, None, None)
