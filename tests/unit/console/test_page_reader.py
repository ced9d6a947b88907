"""The reader of the pages in front of brokers that do not answer, which are left out for a while."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.address import Address
from tidelog.client.admin.brokers import Quorum
from tidelog.client.admin.topics import ConfigResource
from tidelog.client.cluster import Broker, Cluster, ClusterView, Topic
from tidelog.client.core.cluster_view import Partition
from tidelog.client.errors import ClientError, ConnectionLostError, NoAnswerError, UnreachableError
from tidelog.console import page_reader
from tidelog.console.core.isr_history import Health
from tidelog.console.page_reader import PageReader
from tidelog.console.readings import MAX_ASKED, SILENT_MS, SilentBrokers, ask_one
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.instants import WallMs
from tidelog.model.topics import ZERO_TOPIC_ID
from tidelog.observe import cluster_reader


def reader_of(cluster: Mock, clock: ManualClock) -> tuple[PageReader, list[tuple[str, ...]]]:
    """Returns a reader, and the arguments of its attempts to connect."""
    connected: list[tuple[str, ...]] = []

    def connect(known: tuple[str, ...]) -> Any:
        connected.append(known)
        return cluster

    return PageReader(
        connect, lambda: WallMs(0), clock.monotonic_ms, SilentBrokers(clock.monotonic_ms)
    ), connected


def test_all_pages_wait_for_a_frozen_broker_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def offsets(*args: object, silent: set[int], **options: object) -> dict[str, int]:
        if 2 not in silent:
            waits.append(2)
            silent.add(2)
        return {}

    monkeypatch.setattr(cluster_reader, "offsets_of_topics", offsets)
    monkeypatch.setattr(cluster_reader, "describe_log_dirs", lambda *args, **options: [])
    cluster = Mock(Cluster, topics=dict, describe=lambda: ClusterView("x", 1, ()))
    clock = ManualClock()
    reader, _ = reader_of(cluster, clock)
    for _ in range(3):
        assert reader.topics().silent == (2,)
    assert waits == [2]
    clock.advance(SILENT_MS)
    assert reader.topics().silent == (2,)
    assert waits == [2, 2]


def test_settings_are_those_of_the_first_broker_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def describe(cluster: Cluster, resource: ConfigResource) -> list[object]:
        asked.append(resource.name)
        if resource.name == "1":
            raise NoAnswerError("no answer from 127.0.0.1:1 in 5 s")
        return []

    monkeypatch.setattr(page_reader, "describe_configs", describe)
    brokers = tuple(Broker(each, Address("127.0.0.1", each), None) for each in (1, 2, 3))
    clock = ManualClock()
    reader, _ = reader_of(Mock(Cluster, describe=lambda: ClusterView("x", 1, brokers)), clock)
    for _ in range(2):
        found = reader.settings(None)
        assert (found.broker_ids, found.broker_id, found.silent) == ((1, 2, 3), 2, (1,))
    assert asked == ["1", "2", "2"]
    with pytest.raises(NoAnswerError, match="no answer from broker 1 lately"):
        reader.settings(1)
    assert asked == ["1", "2", "2"]
    clock.advance(SILENT_MS)
    with pytest.raises(NoAnswerError, match=r"no answer from 127\.0\.0\.1:1"):
        reader.settings(1)


def test_a_broker_without_a_connection_is_asked_again_with_the_next_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second attempt left it out, so the user read that it did not answer lately, and not why."""
    asked: list[str] = []

    def describe(cluster: Cluster, resource: ConfigResource) -> list[object]:
        asked.append(resource.name)
        raise UnreachableError("no connection to 127.0.0.1:1: connection refused")

    monkeypatch.setattr(page_reader, "describe_configs", describe)
    brokers = (Broker(1, Address("127.0.0.1", 1), None),)
    reader, connected = reader_of(Mock(Cluster, describe=lambda: ClusterView("x", 1, brokers)), ManualClock())
    reader.open()
    with pytest.raises(UnreachableError, match="connection refused"):
        reader.settings(1)
    assert (asked, len(connected)) == (["1", "1"], 2)
    with pytest.raises(NoAnswerError, match="no answer from broker 1 lately"):
        reader.settings(1)
    assert asked == ["1", "1"], "other pages leave it out for a while"


def replicated(leader: int, isr: tuple[int, ...]) -> dict[str, Topic]:
    return {"t": Topic("t", ZERO_TOPIC_ID, False, (Partition(0, leader, 0, (1, 2, 3), isr, ()),))}


def broker(broker_id: int) -> Broker:
    return Broker(broker_id, Address("127.0.0.1", broker_id), None)


def test_a_killed_broker_is_down_and_no_broker_is_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "describe_quorum", lambda cluster: Quorum(2, (1, 2)))
    answers = iter(
        [
            (ClusterView("x", 1, (broker(1), broker(2), broker(3))), replicated(1, (1, 2, 3))),
            (ClusterView("x", 1, (broker(1), broker(2))), replicated(1, (1, 2))),
        ]
    )
    reader, _ = reader_of(Mock(Cluster, describe_with_topics=lambda: next(answers)), ManualClock())
    reader.overview()
    found = reader.overview()
    assert [(load.broker_id, load.broker, load.is_up, load.replica_count) for load in found.brokers] == [
        (1, broker(1), True, 1),
        (2, broker(2), True, 1),
        (3, broker(3), False, 1),
    ]
    assert (found.quorum.active_text, found.sample.controller, found.sample.down_ids) == ("2", "2", (3,))


def test_with_all_brokers_dead_nothing_looks_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "describe_quorum", lambda cluster: Quorum(2, (1, 2)))
    alive = [(ClusterView("x", 1, (broker(1), broker(2))), replicated(1, (1, 2)))]

    def describe() -> tuple[ClusterView, dict[str, Topic]]:
        if not alive:
            raise UnreachableError("no broker answers: no connection to 127.0.0.1:1: connection refused")
        return alive.pop()

    reader, _ = reader_of(Mock(Cluster, describe_with_topics=describe), ManualClock())
    reader.overview()
    found = reader.overview()
    assert found.unreachable.startswith("no broker answers")
    assert {(load.is_up, load.leader_count) for load in found.brokers} == {(False, 0)}
    assert (found.quorum.active_text, found.sample.health) == ("unknown", Health.OFFLINE)
    assert {row.slots[-1] for row in found.timeline} == {Health.OFFLINE}
    with pytest.raises(UnreachableError):
        reader.sample_health(0)


def test_a_first_look_without_brokers_is_an_error() -> None:
    def describe() -> object:
        raise UnreachableError("no connection to 127.0.0.1:1: connection refused")

    reader, _ = reader_of(Mock(Cluster, describe_with_topics=describe), ManualClock())
    with pytest.raises(UnreachableError):
        reader.overview()


def test_a_broker_that_does_not_answer_leaves_the_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Mock(Cluster, describe=lambda: ClusterView("x", 1, ()))
    reader, connected = reader_of(cluster, ManualClock())

    def fail(error: Exception) -> None:
        raise error

    reader.run(lambda cluster: None)
    with pytest.raises(NoAnswerError):
        reader.run(lambda cluster: fail(NoAnswerError("no answer")))
    reader.run(lambda cluster: None)
    assert len(connected) == 1
    cluster.close.assert_not_called()
    with pytest.raises(ConnectionLostError):
        reader.run(lambda cluster: fail(ConnectionLostError("gone")))
    assert len(connected) == 2


def test_a_silent_broker_is_asked_again_later() -> None:
    clock = ManualClock()
    brokers = SilentBrokers(clock.monotonic_ms)
    with brokers.asking() as silent:
        assert silent == set()
        silent.add(2)
        clock.advance(5_000)  # the time for which the page waited
    for at_ms, expected in ((5_000, {2}), (5_000 + SILENT_MS - 1, {2}), (5_000 + SILENT_MS, set())):
        clock.advance(at_ms - clock.monotonic_ms())
        with brokers.asking() as silent:
            assert silent == expected


def test_a_reading_that_fails_remembers_the_broker_too() -> None:
    brokers = SilentBrokers(ManualClock().monotonic_ms)
    with pytest.raises(ValueError, match="x"), brokers.asking() as silent:
        silent.add(1)
        raise ValueError("x")
    with brokers.asking() as silent:
        assert silent == {1}


@given(
    brokers=st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True).map(sorted),
    known=st.sets(st.integers(1, 9)),
    frozen=st.sets(st.integers(1, 9)),
    error=st.sampled_from([NoAnswerError("no answer"), UnreachableError("no connection")]),
)
def test_one_of_several_brokers_is_asked_in_bounded_time(
    brokers: list[int], known: set[int], frozen: set[int], error: ClientError
) -> None:
    asked: list[int] = []

    def ask(broker_id: int) -> str:
        asked.append(broker_id)
        if broker_id in frozen:
            raise error
        return f"answer of {broker_id}"

    silent = set(known)
    try:
        chosen, answer = ask_one(brokers, silent, ask)
    except (NoAnswerError, UnreachableError):
        assert set(asked) <= frozen
        assert len(asked) == min(MAX_ASKED, len(set(brokers) - known))
    else:
        assert answer == f"answer of {chosen}"
        assert asked[-1] == chosen
        assert set(asked[:-1]) <= frozen
    assert not known & set(asked)
    assert silent == known | (frozen & set(asked))
    assert asked == sorted(asked)
