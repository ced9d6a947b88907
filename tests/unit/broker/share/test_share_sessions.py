"""Share sessions: their epochs, their limits, and their ends."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.share.share_sessions import SessionKey, ShareSessions, TopicIdPartition
from tidelog.model.errors import ErrorCode, KafkaError

TOPIC = uuid.UUID(int=7)
KEY = SessionKey("group", "member")
PARTITIONS = [TopicIdPartition(TOPIC, number) for number in range(4)]


def code_of(call: object, *arguments: object) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call(*arguments)  # type: ignore[operator]
    return refused.value.code


def test_each_request_has_the_next_epoch() -> None:
    sessions = ShareSessions(lambda: 2)
    assert code_of(sessions.continue_, KEY, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    session = sessions.open(KEY, "connection", "client", PARTITIONS[:2])
    assert sessions.continue_(KEY, 1) is session
    assert code_of(sessions.continue_, KEY, 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.continue_(KEY, 2) is session


def test_a_session_of_a_client_within_its_share_is_not_evicted() -> None:
    sessions = ShareSessions(lambda: 1)
    sessions.open(KEY, "one", "client", [])
    other = KEY._replace(member_id="other")
    assert code_of(sessions.open, other, "two", "client", []) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.find(KEY)


def test_the_sessions_that_a_connection_opened() -> None:
    sessions = ShareSessions(lambda: 9)
    connection = object()
    session = sessions.open(KEY, connection, "client", PARTITIONS)
    sessions.open(SessionKey("group", "other"), object(), "client", [])
    assert sessions.of_connection(connection) == [session]
    assert len(sessions) == 2


def test_too_many_partitions_are_refused() -> None:
    sessions = ShareSessions(lambda: 9, max_partitions=3)
    assert code_of(sessions.open, KEY, "c", "client", PARTITIONS) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    session = sessions.open(KEY, "c", "client", PARTITIONS[:3])
    assert code_of(sessions.change, session, PARTITIONS[3:], []) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.change(session, PARTITIONS[3:], PARTITIONS[:1]) == PARTITIONS[:1]
    assert list(session.partitions) == PARTITIONS[1:]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["open", "close", "add"]), st.integers(0, 3)))
)
def test_the_count_of_partitions_is_right(steps: list[tuple[str, str, int]]) -> None:
    sessions = ShareSessions(lambda: 2, max_partitions=6)
    for member, step, count in steps:
        key = SessionKey("group", member)
        try:
            if step == "open":
                sessions.close(key)
                sessions.open(key, member, member, PARTITIONS[:count])
            elif step == "close":
                sessions.close(key)
            else:
                sessions.change(sessions.find(key), PARTITIONS[count:], PARTITIONS[:count])
        except KafkaError:
            pass
        assert sessions.partition_count == sum(len(found.partitions) for found in sessions) <= 6
        assert len(sessions) <= 2


def fill(sessions: ShareSessions, client: str, count: int, partitions: int) -> list[ErrorCode | None]:
    """Opens sessions of a client, with the same number of partitions. Returns their errors."""
    errors: list[ErrorCode | None] = []
    for number in range(count):
        named = [TopicIdPartition(TOPIC, partition) for partition in range(partitions)]
        try:
            sessions.open(SessionKey("group", f"{client}-{number}"), object(), client, named)
            errors.append(None)
        except KafkaError as error:
            errors.append(error.code)
    return errors


@pytest.mark.parametrize(("slots", "max_partitions", "size"), [(16, 10_000, 1), (10_000, 160, 10)])
def test_a_client_that_holds_all_sessions_leaves_others_their_share(
    slots: int, max_partitions: int, size: int
) -> None:
    sessions = ShareSessions(lambda: slots, max_partitions=max_partitions)
    greedy = fill(sessions, "greedy", 20, size)
    assert fill(sessions, "other", 5, size) == [None] * 5
    assert greedy == [None] * 14 + [ErrorCode.SHARE_SESSION_LIMIT_REACHED] * 6
    assert (len(sessions), sessions.partition_count) == (16, 16 * size)
    late = SessionKey("group", "late")
    assert (
        code_of(sessions.open, late, object(), "greedy", PARTITIONS) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    )
    assert sum(session.key.member_id.startswith("greedy") for session in sessions) == 11


def test_the_limit_follows_its_setting() -> None:
    slots = 16
    sessions = ShareSessions(lambda: slots)
    assert fill(sessions, "one", 14, 0)[-1] is None
    slots = 32
    assert fill(sessions, "two", 10, 0) == [None] * 10
    assert len(sessions) == 24
