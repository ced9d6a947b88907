"""Incremental fetch sessions agree with a model that contains only the rules of KIP-227."""

from __future__ import annotations

import itertools
import uuid
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.broker.requests.client_fetch_sessions import (
    MIN_EVICTION_MS,
    ClientFetchPosition,
    ClientFetchSessions,
    ClientPartitionKey,
    FetchPlan,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import FINAL_EPOCH, MAX_EPOCH
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

SLOTS = 8
BY_NAME, BY_ID = 12, 17
NO_ID = uuid.UUID(int=0)


def request(
    session_id: int,
    epoch: int,
    wanted: dict[int, int] | None = None,
    forgotten: tuple[int, ...] = (),
) -> FetchRequest:
    """Fetches `wanted`, the partitions of one topic with their fetch offsets."""
    partitions = [FetchPartition(partition=index, fetch_offset=at) for index, at in (wanted or {}).items()]
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=list(forgotten))] if forgotten else [],
    )


def offsets(plan: FetchPlan) -> dict[int, int]:
    return {partition.key.partition: partition.fetch_offset for partition in plan.partitions}


class Known(NamedTuple):
    """The model of one session."""

    epoch: int
    client: str
    offsets: dict[int, int]
    used_ms: int


partitions = st.dictionaries(st.integers(0, 5), st.integers(0, 100), max_size=5)


class SessionsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        ids = itertools.count(1)
        self.sessions = ClientFetchSessions(SLOTS, lambda: next(ids))
        self.known: dict[int, Known] = {}
        self.now_ms = 0

    @rule(client=st.sampled_from("abc"), wanted=partitions, replaces=st.integers(0, SLOTS))
    def full(self, client: str, wanted: dict[int, int], replaces: int) -> None:
        old = dict(enumerate(self.known, 1)).get(replaces, 0)
        self.known.pop(old, None)
        has_room = len(self.known) < SLOTS - 1
        is_below_share = self.count(client) + 1 <= self.share(client)
        plan = self.sessions.plan(request(old, 0, wanted), BY_NAME, client, self.now_ms)
        assert offsets(plan) == wanted
        assert not plan.is_incremental
        assert plan.session is None or wanted
        evicted = [name for name in self.known if name not in self.sessions]
        share = self.share(client)
        for name in evicted:
            known = self.known[name]
            is_stale = self.now_ms - known.used_ms >= MIN_EVICTION_MS
            assert is_stale or (is_below_share and self.count(known.client) > share)
            assert not has_room
            del self.known[name]
        if plan.session is not None:
            self.known[plan.session.session_id] = Known(1, client, dict(wanted), self.now_ms)
        else:
            assert not wanted or not (has_room or is_below_share)

    def count(self, client: str) -> int:
        return sum(session.client == client for session in self.known.values())

    def share(self, client: str) -> int:
        return SLOTS // (len({client, *(session.client for session in self.known.values())}) + 1)

    @rule(wanted=partitions)
    def final(self, wanted: dict[int, int]) -> None:
        old = next(iter(self.known), 0)
        self.known.pop(old, None)
        plan = self.sessions.plan(request(old, FINAL_EPOCH, wanted), BY_NAME, "a", self.now_ms)
        assert offsets(plan) == wanted
        assert plan.session is None

    @precondition(lambda self: self.known)
    @rule(which=st.integers(0, SLOTS), wanted=partitions, forgotten=st.sets(st.integers(0, 5), max_size=3))
    def incremental(self, which: int, wanted: dict[int, int], forgotten: set[int]) -> None:
        name = list(self.known)[which % len(self.known)]
        session = self.known.pop(name)
        expected = {
            index: at for index, at in {**session.offsets, **wanted}.items() if index not in forgotten
        }
        plan = self.sessions.plan(
            request(name, session.epoch, wanted, tuple(forgotten)), BY_NAME, "a", self.now_ms
        )
        assert plan.is_incremental
        assert offsets(plan) == expected
        assert (plan.session is not None) == bool(expected)
        if expected:
            self.known[name] = Known(session.epoch + 1, session.client, expected, self.now_ms)

    @rule(which=st.integers(0, SLOTS), off=st.sampled_from([-1, 1, 5]))
    def wrong_epoch(self, which: int, off: int) -> None:
        name = dict(enumerate(self.known)).get(which)
        if name is None:
            self.refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 999_999, 1)
        elif self.known[name].epoch + off > 0:
            self.refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, name, self.known[name].epoch + off)

    @precondition(lambda self: self.known)
    @rule()
    def other_way_of_naming(self) -> None:
        name = next(iter(self.known))
        self.refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, name, self.known[name].epoch, BY_ID)

    def refused(self, code: ErrorCode, name: int, epoch: int, version: int = BY_NAME) -> None:
        with pytest.raises(KafkaError) as refusal:
            self.sessions.plan(request(name, epoch), version, "a", self.now_ms)
        assert refusal.value.code == code

    @rule(elapsed_ms=st.sampled_from([1, 1000, MIN_EVICTION_MS // 2, MIN_EVICTION_MS, MIN_EVICTION_MS + 1]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms

    @invariant()
    def no_more_than_there_are_slots(self) -> None:
        assert len(self.sessions) == len(self.known) <= SLOTS
        assert self.sessions.partition_count == sum(len(session.offsets) for session in self.known.values())


TestSessionsAgainstModel = SessionsAgainstModel.TestCase
TestSessionsAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_epochs_wrap() -> None:
    sessions = ClientFetchSessions(SLOTS, lambda: 7)
    session = sessions.plan(request(0, 0, {0: 1}), BY_NAME, "a", 0).session
    assert session is not None
    session.epoch = MAX_EPOCH
    sessions.plan(request(7, MAX_EPOCH), BY_NAME, "a", 0)
    assert session.epoch == 1


def test_session_ids_are_never_zero_and_never_in_use() -> None:
    ids = iter([0, 5, 5, 0, 6])
    sessions = ClientFetchSessions(SLOTS, lambda: next(ids))
    made = [sessions.plan(request(0, 0, {0: 1}), BY_NAME, "a", 0).session for _ in range(2)]
    assert [session.session_id for session in made if session is not None] == [5, 6]


def test_topic_ids_distinguish_partitions() -> None:
    sessions = ClientFetchSessions(SLOTS, lambda: 7)
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    topics = [FetchTopic(topic_id=topic_id, partitions=[FetchPartition()]) for topic_id in (one, two)]
    sessions.plan(FetchRequest(session_epoch=0, topics=topics), BY_ID, "a", 0)
    forgotten = [ForgottenTopic(topic_id=one, partitions=[0])]
    plan = sessions.plan(
        FetchRequest(session_id=7, session_epoch=1, forgotten_topics_data=forgotten), BY_ID, "a", 0
    )
    assert [partition.key.topic_id for partition in plan.partitions] == [two]


@pytest.mark.parametrize(
    ("told", "then", "is_news"),
    [
        ((0, 10, 0, False), (0, 10, 0, False), False),
        ((0, 10, 0, False), (0, 10, 0, True), True),
        ((0, 10, 0, False), (0, 11, 0, False), True),
        ((0, 10, 0, False), (0, 10, 5, False), True),
        ((0, 10, 0, False), (6, 10, 0, False), True),
        ((6, -1, -1, False), (6, -1, -1, False), True),
        ((6, -1, -1, False), (0, 10, 0, False), True),
    ],
)
def test_partitions_of_an_incremental_response(
    told: tuple[int, int, int, bool], then: tuple[int, int, int, bool], is_news: bool
) -> None:
    partition = ClientFetchPosition(ClientPartitionKey("t", NO_ID, 0), FetchPartition())
    partition.is_news(*told)
    assert partition.is_news(*then) == is_news


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    ids = itertools.count(1)
    sessions = ClientFetchSessions(SLOTS, lambda: next(ids), max_partitions=5)
    first = sessions.plan(request(0, 0, {0: 1, 1: 1, 2: 1}), BY_NAME, "a", 0).session
    assert first is not None
    plan = sessions.plan(request(0, 0, {0: 1, 1: 1, 2: 1}), BY_NAME, "a", 0)
    assert plan.session is None
    assert len(plan.partitions) == 3
    assert sessions.plan(request(0, 0, {0: 1}), BY_NAME, "a", 0).session is not None
    with pytest.raises(KafkaError) as refusal:  # the client begins again
        sessions.plan(request(first.session_id, 1, {3: 1}), BY_NAME, "a", 0)
    assert refusal.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (1, 1)


def test_an_old_session_makes_room_for_partitions() -> None:
    ids = itertools.count(1)
    sessions = ClientFetchSessions(SLOTS, lambda: next(ids), max_partitions=3)
    sessions.plan(request(0, 0, {0: 1, 1: 1}), BY_NAME, "a", 0)
    plan = sessions.plan(request(0, 0, {0: 1, 1: 1}), BY_NAME, "a", MIN_EVICTION_MS + 1)
    assert plan.session is not None
    assert (len(sessions), sessions.partition_count, sessions.evicted_total) == (1, 2, 1)


def test_a_session_admits_only_known_partitions() -> None:
    sessions = ClientFetchSessions(SLOTS, lambda: 7, is_known=lambda key: key.partition < 2)
    plan = sessions.plan(request(0, 0, {0: 1, 5: 1}), BY_NAME, "a", 0)
    assert plan.session is None
    assert offsets(plan) == {0: 1, 5: 1}
    assert sessions.plan(request(0, 0, {0: 1}), BY_NAME, "a", 0).session is not None
    assert sessions.plan(request(7, 1, {1: 1}), BY_NAME, "a", 0).session is not None
    with pytest.raises(KafkaError) as refusal:
        sessions.plan(request(7, 2, {5: 1}), BY_NAME, "a", 0)
    assert refusal.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)


def sessions_of(sessions: ClientFetchSessions, client: str, wanted: list[int], now_ms: int = 0) -> list[int]:
    """Opens sessions of a client with these numbers of partitions. Returns the ids, 0 without a session."""
    plans = [
        sessions.plan(request(0, 0, dict.fromkeys(range(size), 1)), BY_NAME, client, now_ms)
        for size in wanted
    ]
    return [0 if plan.session is None else plan.session.session_id for plan in plans]


def test_a_client_that_fills_the_slots_leaves_others_their_share() -> None:
    ids = itertools.count(1)
    sessions = ClientFetchSessions(16, lambda: next(ids))
    greedy = sessions_of(sessions, "greedy", [1] * 20)
    assert 0 not in greedy[:14]
    assert greedy[14:] == [0] * 6
    assert 0 not in sessions_of(sessions, "other", [1] * 5)
    assert len(sessions) == 16
    assert sessions_of(sessions, "greedy", [5], 2_000) == [0]
    evicted = [name for name in greedy[:14] if name not in sessions]
    assert (len(evicted), sessions.evicted_total) == (3, 3)
    with pytest.raises(KafkaError) as refusal:  # the client makes a full fetch
        sessions.plan(request(evicted[0], 1), BY_NAME, "greedy", 0)
    assert refusal.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_client_that_fills_the_partitions_leaves_others_their_share() -> None:
    ids = itertools.count(1)
    sessions = ClientFetchSessions(1_000, lambda: next(ids), max_partitions=160)
    assert 0 not in sessions_of(sessions, "greedy", [20, 20, 20, 20, 40, 20])
    assert sessions_of(sessions, "greedy", [1]) == [0]
    [other] = sessions_of(sessions, "other", [20])
    sessions.plan(request(other, 1, dict.fromkeys(range(20, 53), 1)), BY_NAME, "other", 1)
    assert sessions.room.held_by("other") == 53
    assert sessions.room.held_by("greedy") == 100  # it has lost its largest session, and no other
    assert (sessions.partition_count, sessions.evicted_total) == (153, 1)
    with pytest.raises(KafkaError) as refusal:
        sessions.plan(request(1, 1, dict.fromkeys(range(20, 40), 1)), BY_NAME, "greedy", 1)
    assert refusal.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
