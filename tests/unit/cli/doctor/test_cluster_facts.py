"""The groups that the doctor reads."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidelog.cli.doctor import cluster_facts
from tidelog.cli.doctor.cluster_facts import MAX_UNSEEN_GROUPS, FactReader
from tidelog.cli.doctor.facts import Unseen
from tidelog.client.admin.groups import ListedGroup
from tidelog.client.admin.transactions import AskedCoordinators, PartitionProducer
from tidelog.client.errors import UnsupportedApiError
from tidelog.model.topics import TopicPartition
from tidelog.observe import cluster_reader


def test_share_groups_whose_offsets_the_broker_does_not_serve_leave_the_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka 4.0 lists share groups without their offsets. Groups that do not answer take long, so only few of
    them are asked, but these answer at once.
    """

    def unsupported(*args: object) -> object:
        raise UnsupportedApiError("the broker does not serve DescribeShareGroupOffsets")

    shares = [ListedGroup(f"share-{n}", "share", "share", "Empty") for n in range(MAX_UNSEEN_GROUPS + 1)]
    readers = ListedGroup("writers", "classic", "consumer", "Empty")
    monkeypatch.setattr(cluster_facts, "list_groups", lambda *args: [*shares, readers])
    monkeypatch.setattr(cluster_reader, "describe_share_offsets", unsupported)
    monkeypatch.setattr(cluster_reader, "committed_offsets", lambda *args: {TopicPartition("flights", 0): 4})
    reader = FactReader(cast("Any", None), 1.0, None, (), lambda part: None)
    unseen: dict[str, str] = {}
    types: dict[str, str] = {}
    assert reader._committed(unseen, types) == {"writers": {("flights", 0): 4}}
    assert unseen.keys() == {group.group_id for group in shares}
    assert types["writers"] == "classic"


def test_a_transaction_that_an_unread_shard_may_know_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the doctor would advise to abort a healthy transaction whose coordinator is just away."""
    unread = TopicPartition("__transaction_state", 3)
    opened = PartitionProducer(TopicPartition("flights", 0), 7, 0, 0, 0, 0, start_offset=10)
    monkeypatch.setattr(cluster_facts, "describe_producers", lambda *args: [opened])
    reader = FactReader(cast("Any", None), 1.0, None, (), lambda part: None)
    for shards, seen in (([unread], True), ([], False)):
        asked = AskedCoordinators({}, shards)
        monkeypatch.setattr(cluster_facts, "transactions_of", lambda *args, asked=asked: asked)
        found = reader._hanging([opened])
        assert isinstance(found, Unseen) is seen
        assert "__transaction_state-3" in found.reason if isinstance(found, Unseen) else found == [opened]
