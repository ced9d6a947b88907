"""The follower's half of fetch sessions against the leader's half."""

from __future__ import annotations

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.replication.fetch_wire import FETCH_VERSION, FollowerRequest, encode_request
from tidelog.broker.replication.followed_partition import LeaderFetchPosition, LeaderFetchSession
from tidelog.broker.requests.client_fetch_sessions import ClientFetchSessions
from tidelog.model.errors import KafkaError
from tidelog.wire import codec
from tidelog.wire.messages.fetch import FetchRequest

TOPICS = [uuid.UUID(int=number) for number in (1, 2)]


def position(topic: int, partition: int, fetch_offset: int = 0) -> LeaderFetchPosition:
    return LeaderFetchPosition(TOPICS[topic].bytes, partition, fetch_offset=fetch_offset, max_bytes=1000)


def next_request(session: LeaderFetchSession) -> FetchRequest:
    """Returns the request as a leader's codec reads it."""
    session_id, epoch, positions, forgotten = session.next_request()
    (body,) = encode_request(FollowerRequest(2, 7, 500, 1, 1000, session_id, epoch, positions, forgotten))
    request: FetchRequest
    request, _ = codec.request_decoder(FetchRequest.API_KEY, FETCH_VERSION)(body, 0)
    return request


def named(request: FetchRequest) -> set[tuple[uuid.UUID, int]]:
    return {(topic.topic_id, part.partition) for topic in request.topics for part in topic.partitions}


def leader_sessions(slots: int = 10) -> ClientFetchSessions:
    ids = iter(range(100, 1_000_000))
    return ClientFetchSessions(slots, lambda: next(ids))


def exchange(
    session: LeaderFetchSession, leader: ClientFetchSessions, now_ms: int = 0
) -> set[tuple[uuid.UUID, int]]:
    """Sends one request and answers it. Returns the request as the leader reads it."""
    plan = leader.plan(next_request(session), FETCH_VERSION, "b", now_ms)
    session.answered(0 if plan.session is None else plan.session.session_id)
    return {(part.key.topic_id, part.key.partition) for part in plan.partitions}


def test_the_first_request_names_every_partition_and_the_next_none() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    for partition in range(3):
        session.add(position(0, partition))
    assert exchange(session, leader) == {(TOPICS[0], 0), (TOPICS[0], 1), (TOPICS[0], 2)}
    request = next_request(session)
    assert (named(request), request.session_epoch) == (set(), 1)


def test_only_changed_positions_are_named() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    places = [position(0, partition) for partition in range(3)]
    for place in places:
        session.add(place)
    exchange(session, leader)
    places[1].fetch_offset = 7
    session.moved(places[1])
    request = next_request(session)
    assert [part.fetch_offset for topic in request.topics for part in topic.partitions] == [7]


def test_a_partition_added_during_a_full_request_is_named_next() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    session.add(position(0, 0))
    full = next_request(session)
    late = position(1, 5)
    session.add(late)
    assert late.valid_from > session.last_request, "the response to the full request does not concern it"
    plan = leader.plan(full, FETCH_VERSION, "b", 0)
    assert plan.session is not None
    session.answered(plan.session.session_id)
    assert exchange(session, leader) == {(TOPICS[0], 0), (TOPICS[1], 5)}


def test_a_partition_removed_and_added_again_is_fetched_from_its_new_position() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    place = position(0, 0, fetch_offset=5)
    session.add(place)
    exchange(session, leader)
    session.remove(place)
    session.add(position(0, 0, fetch_offset=3))
    plan = leader.plan(next_request(session), FETCH_VERSION, "b", 0)
    assert [part.fetch_offset for part in plan.partitions] == [3]


def test_an_emptied_session_ends_and_another_begins() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    place = position(0, 0)
    session.add(place)
    exchange(session, leader)
    session.remove(place)
    assert not session.is_empty, "the leader has to learn of the change"
    assert exchange(session, leader) == set()
    assert session.is_empty
    session.add(place)
    assert session.is_opening
    assert exchange(session, leader) == {(TOPICS[0], 0)}


def test_a_leader_without_sessions_is_asked_for_everything_each_time() -> None:
    session, leader = LeaderFetchSession(), leader_sessions(slots=0)
    session.add(position(0, 0))
    assert exchange(session, leader) == {(TOPICS[0], 0)}
    assert exchange(session, leader) == {(TOPICS[0], 0)}


def test_a_lost_session_is_opened_again_and_earlier_responses_are_void() -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    place = position(0, 0)
    session.add(place)
    exchange(session, leader)
    session.restart()
    assert session.first_valid_request == place.valid_from == session.last_request + 1
    assert exchange(session, leader_sessions()) == {(TOPICS[0], 0)}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 1), st.integers(0, 2)),
            st.tuples(st.sampled_from(["fetch", "forget sessions"]), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_the_leader_reads_the_followers_positions(steps: list[tuple[str, int, int]]) -> None:
    session, leader = LeaderFetchSession(), leader_sessions()
    wanted: dict[tuple[uuid.UUID, int], LeaderFetchPosition] = {}
    for number, (what, topic, partition) in enumerate(steps):
        key = TOPICS[topic], partition
        if what == "add":
            wanted[key] = position(topic, partition, fetch_offset=number)
            session.add(wanted[key])
        elif what == "remove" and key in wanted:
            session.remove(wanted.pop(key))
        elif what == "forget sessions":
            leader = leader_sessions()
        elif what == "fetch" and not session.is_empty:
            try:
                plan = leader.plan(next_request(session), FETCH_VERSION, "b", number)
            except KafkaError:
                session.restart()
                plan = leader.plan(next_request(session), FETCH_VERSION, "b", number)
            session.answered(0 if plan.session is None else plan.session.session_id)
            found = {(part.key.topic_id, part.key.partition): part.fetch_offset for part in plan.partitions}
            assert found == {key: place.fetch_offset for key, place in wanted.items()}
