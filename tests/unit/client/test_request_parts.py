"""No request of the client names more than brokers with limits accept (wire/request_limits.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerlab.client_parts import ClientParts
from tidelog.client.admin.access import AclBinding, create_acls
from tidelog.client.admin.brokers import describe_log_dirs
from tidelog.client.admin.groups import CommittedOffset, commit_offsets, delete_offsets
from tidelog.client.admin.logs import epoch_ends
from tidelog.client.admin.offsets import (
    alter_share_offsets,
    delete_share_offsets,
    list_offsets,
    offsets_of_topics,
)
from tidelog.client.admin.reassignments import alter_reassignments, elect_leaders
from tidelog.client.admin.topics import delete_records, describe_topics_setting
from tidelog.client.cluster import Cluster, Topic
from tidelog.client.core.cluster_view import (
    MetadataReceived,
    Node,
    Partition,
    PartitionLeader,
    TopicView,
    in_parts,
)
from tidelog.client.core.consuming.consumed_partition import OffsetToCommit
from tidelog.client.core.consuming.consumer import ConsumerCore
from tidelog.client.core.consuming.consumer_events import PositionCheck, SendFetch
from tidelog.client.core.consuming.membership import Heartbeat, HeartbeatAnswered
from tidelog.client.core.consuming.share_consumer import SendShareFetch, ShareAnswered, ShareConsumerCore
from tidelog.client.core.producing.producer import ProducerCore
from tidelog.client.core.producing.producer_batch import ProducerIdReceived, SendProduce
from tidelog.client.core.settings import ProducerSettings, ShareConsumerSettings
from tidelog.client.shell.consuming.consumer import Consumer
from tidelog.client.shell.consuming.group_calls import Coordinator, Member
from tidelog.client.shell.network import Network
from tidelog.client.shell.producing.sender import produce_request
from tidelog.client.shell.producing.transactions import GroupMetadata, TransactionCalls
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import max_elements
from tidelog.wire.messages.apis import ApiKey

COUNT = 6_000
PLACES = [TopicPartition(f"t{number}", 0) for number in range(COUNT)]
TOPICS = [
    Topic(place.topic, uuid.UUID(int=1), False, (Partition(0, 1, 0, (1, 2, 3), (1, 2, 3), ()),))
    for place in PLACES
]


class SentError(Exception):
    """A request was sent."""


def elements(message: Any) -> int:
    """Returns the number of elements of all arrays in a message."""
    found = 0
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, list):
            found += len(value)
            found += sum(elements(each) for each in value if dataclasses.is_dataclass(each))
    return found


class Broker:
    """A broker that checks the first request."""

    def call(self, request: Any, answer: object, **options: object) -> Any:
        assert elements(request) <= max_elements(request.API_KEY), type(request).__name__
        raise SentError


class Line:
    """A connection to this broker."""

    async def call(self, request: Any, *asked: object, **options: object) -> Any:
        return Broker().call(request, None)


async def line(*asked: object) -> Line:
    return Line()


class ManyTopics(Cluster):
    """A cluster with many topics."""

    def __init__(self) -> None:
        self.timeout_s = 1.0
        self.timeout_ms = 1000

    def any_broker(self) -> Any:
        return Broker()

    def controller(self) -> Any:
        return Broker()

    def broker(self, broker_id: int) -> Any:
        return Broker()

    def topics(self, names: object = None, *, seen_by: int | None = None) -> dict[str, Topic]:
        return {topic.name: topic for topic in TOPICS}


WIDE = Topic("wide", uuid.UUID(int=1), False, tuple(Partition(n, 1, 0, (1,), (1,), ()) for n in range(9_000)))
CALLS: dict[str, Callable[[Cluster], object]] = {
    "log dirs": lambda cluster: describe_log_dirs(cluster, [1], TOPICS),
    "offsets of topics": lambda cluster: offsets_of_topics(cluster, TOPICS, -1),
    "offsets of a topic": lambda cluster: list_offsets(cluster, WIDE, -1),
    "delete records": lambda cluster: delete_records(cluster, dict.fromkeys(PLACES, 1)),
    "settings": lambda cluster: describe_topics_setting(cluster, [each.topic for each in PLACES], "x"),
    "delete offsets": lambda cluster: delete_offsets(cluster, "g", PLACES),
    "commit": lambda cluster: commit_offsets(cluster, "g", dict.fromkeys(PLACES, CommittedOffset(1))),
    "reassign": lambda cluster: alter_reassignments(cluster, dict.fromkeys(PLACES, (1, 2, 3))),
    "elect": lambda cluster: elect_leaders(cluster, 0, PLACES),
    "epochs": lambda cluster: epoch_ends(cluster, dict.fromkeys(PLACES, 1)),
    "share offsets": lambda cluster: alter_share_offsets(cluster, "g", dict.fromkeys(PLACES, 1)),
    "share deletion": lambda cluster: delete_share_offsets(cluster, "g", [each.topic for each in PLACES]),
    "acls": lambda cluster: create_acls(
        cluster, [cast("Any", AclBinding)(2, 3, each.topic, "User:a", "*", 3, 3) for each in PLACES]
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_the_tools(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("groups", "offsets"):
        monkeypatch.setattr(f"tidelog.client.admin.{module}.coordinator_of", lambda *asked: Broker())
    with pytest.raises(SentError):
        CALLS[name](ManyTopics())


def test_the_metadata_of_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "any_broker", line)
    with Cluster("127.0.0.1:1") as cluster, pytest.raises(SentError):
        cluster.topics(f"t{number}" for number in range(20_000))


ASKED: dict[str, Callable[[Any], Any]] = {
    "commit": lambda shell: shell.calls.commit(dict.fromkeys(PLACES, OffsetToCommit(1)), Member()),
    "committed": lambda shell: shell.calls.committed(PLACES),
    "offsets": lambda shell: shell.calls.offsets(dict.fromkeys(PLACES, -1)),
    "epochs": lambda shell: shell.calls.epoch_ends(1, dict.fromkeys(PLACES, PositionCheck(1, 0, 0))),
    "metadata": lambda shell: shell.network.metadata(f"t{number}" for number in range(20_000)),
    "fetch": lambda shell: shell.fetch(first_fetch(shell.core)),
    "offsets in a transaction": lambda shell: TransactionCalls(
        shell.network, cast("Any", ProducerSettings(transactional_id="x"))
    ).commit_offsets(ProducerIdReceived(1, 1), dict.fromkeys(PLACES, 1), GroupMetadata("g")),
}


def first_fetch(core: ConsumerCore) -> SendFetch:
    core.assign(PLACES)
    for partition in core.partitions.values():
        partition.seek(0)
    (fetch,) = (effect for effect in core.poll(0) if isinstance(effect, SendFetch))
    return fetch


@pytest.mark.parametrize("name", ASKED)
def test_calls_of_the_consumer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ClientParts(Consumer[bytes, bytes]("127.0.0.1:1", {"group.id": "g"}))
    views = tuple(TopicView(place.topic, uuid.UUID(int=1), (PartitionLeader(1, 0),)) for place in PLACES)
    shell.core.view.update(MetadataReceived((Node(1, "h", 1),), views))

    monkeypatch.setattr(shell.network, "broker", line)
    monkeypatch.setattr(shell.network, "any_broker", line)
    monkeypatch.setattr(Coordinator, "connection", line)
    with pytest.raises(SentError):
        asyncio.run(ASKED[name](shell))


def test_a_produce_request_of_many_topics() -> None:
    """Batches of one small record for more than 2,500 topics fit in `max.request.size`."""
    core = ProducerCore(ProducerSettings(buffer_memory=2**30), choose=lambda n: 0, jitter=lambda: 0.0)
    views = tuple(TopicView(place.topic, uuid.UUID(int=1), (PartitionLeader(1, 0),)) for place in PLACES)
    core.step(ProducerIdReceived(1, 0), 0)
    core.step(MetadataReceived((Node(1, "h", 1),), views), 0)
    for place in PLACES:
        assert core.append(*place, 0, None, b"", (), 0) is not None
    effects = [effect for effect in core.poll(1_000) if isinstance(effect, SendProduce)]
    assert effects

    class Line:
        def version_for(self, request: Any, **options: object) -> int:
            return 13

    for effect in effects:
        request, _ = produce_request(cast("Any", Line()), effect.batches, core.settings)
        assert elements(request) <= max_elements(request.API_KEY)


def test_a_share_fetch_of_many_topics() -> None:
    """A share session takes its partitions in several requests."""
    places = [TopicPartition(f"t{number}", 0) for number in range(7_000)]
    ids = {place.topic: uuid.UUID(int=1 + number) for number, place in enumerate(places)}
    core = ShareConsumerCore(ShareConsumerSettings(group_id="g"), jitter=lambda: 0.0)
    core.subscribe(tuple(ids), 0)
    views = tuple(TopicView(place.topic, ids[place.topic], (PartitionLeader(1, 0),)) for place in places)
    core.step(MetadataReceived((Node(1, "h", 1),), views), 0)
    core.begin_poll(0)
    beat = Heartbeat(0, 0, tuple(ids), None, frozenset())
    owned = frozenset((topic_id, 0) for topic_id in ids.values())
    added: list[TopicPartition] = []
    effects = core.step(HeartbeatAnswered(beat, 0, None, 1, 5_000, owned), 1)
    while fetches := [effect for effect in effects if isinstance(effect, SendShareFetch)]:
        (fetch,) = fetches
        assert 2 * len(fetch.added) <= max_elements(ApiKey.SHARE_FETCH)
        added += fetch.added
        if not fetch.added:
            break
        effects = core.step(ShareAnswered(fetch.request_id, 0, None, 1_000, {}), 2)
    assert sorted(added) == sorted(places)


@given(st.lists(st.integers()), st.integers(1, 5))
def test_parts_are_the_whole(items: list[int], size: int) -> None:
    parts = list(in_parts(items, size))
    assert [item for part in parts for item in part] == items
    assert all(1 <= len(part) <= size for part in parts)
