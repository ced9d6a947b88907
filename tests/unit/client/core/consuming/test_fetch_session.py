"""A session's requests make the broker read exactly the wanted partitions, whatever fails.

The broker is a model: it applies requests to its sessions as Kafka's `FetchManager` does.
"""

from __future__ import annotations

from unittest.mock import patch
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.core.consuming import consumer_events as fetch_session
from tidelog.client.core.consuming.consumer_events import FetchSession, SessionRequest
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

Positions = dict[TopicPartition, tuple[int, int]]
PLACES = st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 2))
WANTED = st.dictionaries(PLACES, st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1)
OUTCOMES = st.sampled_from(["answered", "answered", "answered", "lost request", "lost response", "restarted"])
MOST_TURNS = 12
IDS = {"t": UUID(int=1), "u": UUID(int=2)}


class ModelBroker:
    """A broker with room for `slots` sessions."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.sessions: dict[int, tuple[int, Positions]] = {}
        self.reads: Positions = {}
        self._last_id = 0

    def serve(self, request: SessionRequest, wanted: Positions) -> tuple[int, int]:
        """Returns the error code and the session id."""
        rows = {place: wanted[place] for place in request.changed}
        if request.epoch == 0:
            self.sessions.pop(request.session_id, None)
            assert not request.forgotten
            self.reads = rows
            if len(self.sessions) >= self.slots:
                return 0, 0
            self._last_id += 1
            self.sessions[self._last_id] = (1, dict(rows))
            return 0, self._last_id
        if request.session_id not in self.sessions:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        epoch, known = self.sessions[request.session_id]
        if epoch != request.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        self.reads = {**known, **rows}
        for place in request.forgotten:
            assert place in known
            del self.reads[place]
        self.sessions[request.session_id] = (epoch + 1, self.reads)
        return 0, request.session_id


@given(st.integers(0, 1), st.lists(st.tuples(WANTED, OUTCOMES), min_size=1, max_size=20))
def test_the_broker_reads_what_is_wanted(slots: int, steps: list[tuple[Positions, str]]) -> None:
    broker, session = ModelBroker(slots), FetchSession()
    for wanted, outcome in steps:
        if outcome == "restarted":
            broker = ModelBroker(slots)
        request = session.request(wanted, IDS)
        if outcome == "lost request":
            session.failed()
            continue
        code, session_id = broker.serve(request, wanted)
        if outcome == "lost response":
            session.failed()
        elif code:
            session.refused(code)
        else:
            assert broker.reads == wanted
            session.answered(session_id)
        assert len(broker.sessions) <= slots


@given(st.integers(0, 1), st.integers(1, 4), st.lists(st.tuples(WANTED, OUTCOMES), min_size=1, max_size=20))
def test_a_divided_request_reads_all_partitions_in_turns(
    slots: int, most: int, steps: list[tuple[Positions, str]]
) -> None:
    """If the wanted positions stay, the broker of a session soon reads all of them, and one without a session
    reads all of them in turns.
    """
    broker, session = ModelBroker(slots), FetchSession()
    last = steps[-1][0]
    turns: list[TopicPartition] = []
    session_id = 0
    with patch.object(fetch_session, "FETCHED_PARTITIONS", most):
        for number, (wanted, outcome) in enumerate((*steps, *[(last, "answered")] * MOST_TURNS)):
            request = session.request(wanted, IDS)
            assert len(request.changed) + len(request.forgotten) <= most
            if outcome == "lost request":
                session.failed()
                continue
            code, session_id = broker.serve(request, wanted)
            if code or outcome == "lost response":
                session.failed()
                continue
            assert all(broker.reads[place] == wanted[place] for place in request.read)
            session.answered(session_id)
            if number >= len(steps):
                turns += request.read
    assert set(turns) == set(last)
    assert not session_id or broker.reads == last


def test_a_request_names_only_what_changed() -> None:
    session = FetchSession()
    first, second = TopicPartition("t", 0), TopicPartition("u", 0)
    assert session.request({first: (0, 0), second: (0, 0)}, IDS).changed == (first, second)
    session.answered(7)
    request = session.request({first: (5, 0)}, IDS)
    assert request == SessionRequest(7, 1, (first,), (second,), (first,), IDS)
    session.answered(7)
    assert session.request({first: (5, 0)}, IDS).changed == ()


def test_a_new_topic_of_the_same_name_opens_another_session() -> None:
    session = FetchSession()
    place = TopicPartition("t", 0)
    session.request({place: (0, 0)}, IDS)
    session.answered(7)
    request = session.request({place: (0, 0)}, {"t": UUID(int=9)})
    assert (request.session_id, request.epoch, request.changed) == (7, 0, (place,))
