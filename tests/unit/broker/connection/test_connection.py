"""Responses leave in the order of their requests, no request is lost while reading pauses, and the end of a
connection releases everything.

The connection is the real one, over a real socket. The dispatcher does what the texts of the requests say.
"""

from __future__ import annotations

import asyncio
import copy
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tidelog.broker.log.segment import FileRange, Segment
from tidelog.broker.net import connection as connection_module
from tidelog.broker.net.connection import (
    LARGE_ANSWER_ROOM_BYTES,
    MAX_CLIENT_LINES_PER_SECOND,
    ClosedByProtocolError,
    Connection,
)
from tidelog.broker.net.listener import Listener
from tidelog.broker.net.socket_io import BufferPool, Chunk, Outbox
from tidelog.broker.net.turn import CONNECTION_TURN_S, Turn
from tidelog.broker.requests.request import PARKED, EncodedBody, Handling, RequestContext, Route
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.steps import Steps
from tidelog.metrics.telemetry import RequestMetrics, Telemetry
from tidelog.model.acl import Principal
from tidelog.model.fair_budget import FairBudget
from tidelog.process.structured_log import BoundedLog
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import MalformedMessageError

MAX_IN_FLIGHT = 4


class Transport:
    """The server's end of the connection, with the interface of asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.client = socket.socketpair()
        self.server.setblocking(False)
        self.client.setblocking(False)
        self.peername: tuple[str, int] | None = ("10.0.0.1", 50_000)
        self.is_reading = True
        self.is_closing = False
        self._loop = loop
        self.connection: Connection | None = None

    def attach(self, connection: Connection) -> None:
        self.connection = connection
        connection.connection_made(cast(asyncio.BaseTransport, self))

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self.peername, "socket": self.server}.get(name)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._loop.call_soon(self.lose)

    def lose(self) -> None:
        if self.connection is not None:
            self.connection.connection_lost(None)


class Script:
    """A dispatcher that obeys requests: `now:x`, `slow:x`, `park:x`, `describe:x`, `task:x`, `keep:x`,
    `large:n`, `bad`, `bug`, `close`. A slow request takes longer than a connection's turn. `keep` is a task
    that keeps a copy of its request.
    """

    def __init__(self) -> None:
        self.parked: dict[str, RequestContext] = {}
        self.started: list[str] = []
        self.tasks: set[str] = set()
        """The requests that hold back later ones until they are answered."""
        self.now_s = 0.0
        self.abandoned: list[str] = []
        self.kept: list[Callable[[], object]] = []
        self.dropped: list[str] = []
        self.file = HeldFile()
        self.telemetry = RequestMetrics(0)

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        word, _, name = bytes(frame).decode().partition(":")
        route = copy.copy(self)
        route.may_answer_large = word == "describe"
        if route.may_answer_large and not connection.has_room_for_large_answer(len(frame)):
            return
        self.started.append(name)
        context = RequestContext(connection, cast(Any, route), 0, None, 0.0)
        if word == "slow":
            self.now_s += 1.5 * CONNECTION_TURN_S
        if word in ("now", "slow"):
            connection.answer_now(context, self.encode_answer(context, name))
        elif word == "range":
            connection.answer_now(context, [*self.encode_answer(context, name), self.file.range()])
        elif word in ("park", "describe"):
            context.park(lambda: self.abandoned.append(name))
            self.parked[name] = context
        elif word in ("task", "keep"):
            if word == "keep":
                self.kept.append(connection.keep_copy(len(frame), lambda: self.dropped.append(name[:1])))
            context.park()
            connection.start_barrier()
            self.tasks.add(name)
            self.parked[name] = context
        elif word == "large":
            connection.answer_now(context, self.encode_answer(context, "x" * int(name)))
        elif word == "bad":
            raise MalformedMessageError("bad")
        elif word == "refused":
            raise ClosedByProtocolError("refused")
        elif word == "bug":
            raise KeyError("bug")
        elif word == "close":
            connection.close()

    version = 0
    may_answer_large = False

    def encode_answer(self, context: RequestContext, name: str) -> list[Chunk]:
        text = name.encode()
        context.answer_bytes = 4 + len(text)
        return [struct.pack(">i", len(text)) + text]

    def answer(self, name: str) -> None:
        self.parked.pop(name).reply(name)

    def end_task(self, name: str) -> None:
        context = self.parked[name]
        self.answer(name)
        context.connection.end_barrier()


class HeldFile:
    path = "segment"

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the test's garbage
        self._file.write(bytes(100))
        self._file.flush()
        self.fd = self._file.fileno()
        self.references = 0

    def range(self) -> FileRange:
        return FileRange(cast(Segment, self), 0, 100, 0)

    def release(self) -> None:
        self.references -= 1


class Lab:
    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.script = Script()
        self.clock = mock.patch.object(connection_module, "monotonic", lambda: self.script.now_s)
        self.clock.start()
        # Earlier tests may have used up the lines of the process.
        self.log_s = 0.0
        log = BoundedLog("tidelog.broker.clients", MAX_CLIENT_LINES_PER_SECOND, lambda: self.log_s)
        self.log = mock.patch.object(connection_module, "CLIENT_LOG", log)
        self.log.start()
        self.pool = BufferPool()
        self.forgotten: list[Connection] = []
        self.admits = True
        self.listener = SimpleNamespace(
            loop=self.loop,
            buffer_pool=self.pool,
            turn=Turn(self.loop, lambda: self.script.now_s),
            unread_answers=FairBudget(1 << 30),
            max_request_bytes=8 * 1024 * 1024,
            max_in_flight_requests=MAX_IN_FLIGHT,
            name="PLAINTEXT",
            admit=lambda _: self.admits,
            forget=self.forgotten.append,
        )
        self.transports: list[Transport] = []
        self.connection, self.transport = self.connect()

    def connect(self, host: str = "10.0.0.7") -> tuple[Connection, Transport]:
        connection = Connection(cast(Listener, self.listener), self.script.dispatch)
        transport = Transport(self.loop)
        transport.peername = (host, 1)
        self.transports.append(transport)
        transport.attach(connection)
        return connection, transport

    def feed(self, *requests: str, connection: Connection | None = None) -> None:
        stream = b"".join(
            struct.pack(">i", len(text)) + text for text in (request.encode() for request in requests)
        )
        assert not self.feed_bytes(stream, connection)

    def feed_bytes(self, stream: bytes, connection: Connection | None = None, most: int = 1 << 20) -> bytes:
        """Reads like the event loop: only while the connection reads, and a limited number of bytes. Returns
        the rest.
        """
        connection = connection or self.connection
        transport = next(known for known in self.transports if known.connection is connection)
        while stream and transport.is_reading:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(stream), most)
            assert size
            buffer[:size] = stream[:size]
            stream = stream[size:]
            connection.buffer_updated(size)
        return stream

    def turn(self) -> None:
        """Lets the loop run all ready callbacks."""

        async def turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.runner.run(turns())

    def answers(self, transport: Transport | None = None) -> list[str]:
        """Returns the names in all complete responses."""
        self.turn()
        client = (transport or self.transport).client
        data = b""
        while True:
            try:
                got = client.recv(1 << 20)
            except BlockingIOError:
                self.turn()
                try:
                    got = client.recv(1 << 20)
                except BlockingIOError:
                    break
            if not got:
                break
            data += got
        names = []
        while data:
            size = struct.unpack_from(">i", data)[0]
            names.append(data[4 : 4 + size].decode())
            data = data[4 + size :]
        return names

    def close(self) -> None:
        for transport in self.transports:
            transport.client.close()
            transport.lose()
            transport.server.close()
        self.runner.close()
        self.clock.stop()
        self.log.stop()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


# -- order


def test_answers_wait_for_those_before_them(lab: Lab) -> None:
    lab.feed("now:a", "park:b", "now:c", "park:d")
    assert lab.answers() == ["a"]
    lab.script.answer("d")
    assert lab.answers() == []
    lab.script.answer("b")
    assert lab.answers() == ["b", "c", "d"]


def test_a_task_holds_back_later_requests(lab: Lab) -> None:
    lab.feed("park:a", "task:b", "now:c", "now:d")
    assert lab.script.started == ["a", "b"]
    assert not lab.transport.is_reading
    lab.script.end_task("b")
    lab.turn()
    assert lab.script.started == ["a", "b", "c", "d"]
    assert lab.answers() == []
    lab.script.answer("a")
    assert lab.answers() == ["a", "b", "c", "d"]
    assert lab.transport.is_reading


def test_the_number_of_requests_in_progress_is_limited(lab: Lab) -> None:
    lab.feed(*(f"park:{number}" for number in range(MAX_IN_FLIGHT + 3)))
    assert len(lab.script.started) == MAX_IN_FLIGHT
    assert not lab.transport.is_reading
    lab.script.answer("0")
    lab.turn()
    assert len(lab.script.started) == MAX_IN_FLIGHT + 1
    assert not lab.transport.is_reading
    for number in range(1, MAX_IN_FLIGHT + 3):
        lab.script.answer(str(number))
        lab.turn()
    assert lab.answers() == [str(number) for number in range(MAX_IN_FLIGHT + 3)]
    assert lab.transport.is_reading


def test_a_connection_that_used_its_time_lets_others_go_first(lab: Lab) -> None:
    other, _ = lab.connect()
    lab.feed("now:a", "slow:b", "slow:c", "now:d")
    assert lab.script.started == ["a", "b"]
    lab.feed("now:other", connection=other)
    assert lab.script.started[2:] == ["other"]
    lab.turn()
    assert lab.script.started[3:] == ["c", "d"]
    assert lab.answers() == ["a", "b", "c", "d"]
    assert lab.transport.is_reading


def test_a_client_with_many_busy_connections_leaves_others_their_turns(lab: Lab) -> None:
    flood = [lab.connect("10.0.0.1")[0] for _ in range(40)]
    for number, connection in enumerate(flood):
        lab.feed(f"slow:{number}", f"slow:again {number}", connection=connection)
    assert len(lab.script.started) <= 3  # a third of the slow requests would take longer than the share
    other, _ = lab.connect("10.0.0.2")
    lab.feed("now:other", connection=other)
    assert lab.script.started[-1] == "other"
    for _ in range(40):
        lab.turn()
    first = [name for name in lab.script.started if name.isdigit()]
    again = [name for name in lab.script.started if name.startswith("again")]
    assert first == [str(number) for number in range(40)]  # nobody is passed over
    assert again == [f"again {number}" for number in range(40)]


def test_requests_that_wait_are_served_in_as_many_iterations_as_their_shares_need(lab: Lab) -> None:
    for _ in range(40):
        lab.feed("slow:x", connection=lab.connect("10.0.0.1")[0])
    counts = [len(lab.script.started)]
    for _ in range(40):
        lab.script.now_s += 0.001  # other work of the loop
        lab.turn()
        counts.append(len(lab.script.started))
    assert counts[-1] == 40
    per_turn = max(after - before for before, after in pairwise(counts))
    assert per_turn <= 7 * 3, "the loop iterates seven times in a turn of the lab"


def test_a_connection_without_a_turn_may_send_parts_of_requests(lab: Lab) -> None:
    busy, _ = lab.connect("10.0.0.1")
    lab.feed("slow:a", "slow:b", "slow:c", connection=busy)
    slow, transport = lab.connect("10.0.0.1")
    assert not lab.feed_bytes(struct.pack(">i", 5) + b"now", slow)
    assert transport.is_reading
    lab.turn()
    assert not lab.feed_bytes(b":d", slow)
    assert lab.answers(transport) == ["d"]


def test_brokers_do_not_wait_for_the_turns_of_clients(lab: Lab) -> None:
    for number in range(30):
        lab.feed("slow:client", connection=lab.connect(f"10.0.1.{number}")[0])
    started = len(lab.script.started)
    followers = [lab.connect("10.0.0.9")[0] for _ in range(2)]
    for follower in followers:
        follower.is_of_brokers = True
        follower.limit_frames(1 << 20)
        lab.feed("slow:follower", connection=follower)
    assert lab.script.started[started:] == ["follower", "follower"]


def test_a_connection_has_one_turn_at_a_time_however_many_answers_leave(lab: Lab) -> None:
    lab.feed("park:a", "park:b", "slow:0", *(f"slow:{number}" for number in range(1, 8)))
    assert lab.script.started == ["a", "b", "0"]
    lab.script.answer("a")
    lab.script.answer("b")
    counts = []

    async def observe() -> None:
        for _ in range(12):
            counts.append(len(lab.script.started))
            await asyncio.sleep(0)

    lab.runner.run(observe())
    assert counts[-1] == 10
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert lab.answers() == ["a", "b", *map(str, range(8))]


actions = st.one_of(
    st.tuples(
        st.just("feed"), st.lists(st.sampled_from(["now", "slow", "park", "task"]), min_size=1, max_size=7)
    ),
    st.tuples(st.just("answer"), st.integers(0, 10)),
)


@settings(deadline=None, max_examples=150)
@given(script=st.lists(actions, max_size=30), cut=st.integers(1, 40))
def test_every_request_is_answered_once_and_in_order(script: list[tuple[str, Any]], cut: int) -> None:
    lab = Lab()
    try:
        count, unread = 0, b""
        for action, argument in script:
            if action == "feed":
                for word in argument:
                    text = f"{word}:{count}".encode()
                    unread += struct.pack(">i", len(text)) + text
                    count += 1
            elif lab.script.parked:
                name = list(lab.script.parked)[argument % len(lab.script.parked)]
                finish(lab, name)
            unread = lab.feed_bytes(unread, most=cut)
        lab.turn()  # requests that waited for a turn, or for a response to leave, are started
        while lab.script.parked or unread:
            assert lab.script.parked or lab.transport.is_reading, "nothing will ever wake it"
            for name in list(lab.script.parked):
                finish(lab, name)
            lab.turn()
            unread = lab.feed_bytes(unread, most=cut)
            lab.turn()
        assert lab.answers() == [str(number) for number in range(count)]
        assert lab.transport.is_reading
        assert not lab.connection.is_waiting
    finally:
        lab.close()


def finish(lab: Lab, name: str) -> None:
    if name in lab.script.tasks:
        lab.script.end_task(name)
    else:
        lab.script.answer(name)


# -- bounds


def test_unread_answers_stop_the_reading(lab: Lab) -> None:
    """The number of responses that are made ahead of the client is limited, for any number of requests in one
    read.
    """
    lab.feed(*(f"large:{300_000}" for _ in range(100)))
    assert len(lab.script.started) < 10
    assert not lab.transport.is_reading
    got: list[str] = []
    while len(got) < 100:
        more = lab.answers()
        assert more
        got += more
    assert lab.transport.is_reading


def test_a_request_is_not_started_inside_another_clients(lab: Lab) -> None:
    """A response to a parked request resumes held-back requests, but only after the caller has finished."""
    lab.feed(*(f"park:{number}" for number in range(MAX_IN_FLIGHT)), "now:x")
    lab.script.answer("0")
    assert "x" not in lab.script.started
    lab.turn()
    assert "x" in lab.script.started


def test_a_long_poll_that_was_answered_is_not_an_idle_connection(lab: Lab) -> None:
    lab.feed("park:a")
    lab.script.now_s = 100.0
    assert not lab.connection.is_idle_since(50.0)
    lab.script.answer("a")
    assert not lab.connection.is_idle_since(50.0)
    assert lab.connection.is_idle_since(101.0)


# -- ends


@pytest.mark.parametrize("last", ["bad", "refused"])
def test_a_request_without_an_answer_closes_after_the_earlier_answers(lab: Lab, last: str) -> None:
    with capture_logs() as logs:
        lab.feed("now:a", last, "now:b")
    assert lab.transport.is_closing
    assert lab.answers() == ["a"]
    assert lab.script.started == ["a", ""]
    assert [entry["event"] for entry in logs] == ["connection closed"]


def test_a_bug_in_a_handler_closes_its_connection_and_no_other(lab: Lab) -> None:
    other, _ = lab.connect()
    with capture_logs() as logs:
        lab.feed("now:a", "bug")
    assert lab.transport.is_closing
    assert lab.answers() == ["a"]
    assert not other.is_closed
    assert [entry["log_level"] for entry in logs] == ["error"]


def test_a_bug_in_a_request_that_was_held_back_closes_too(lab: Lab) -> None:
    """The handler runs in the context that ended the wait. That context must not get the error."""
    lab.feed("task:a", "bug")
    lab.script.end_task("a")
    lab.turn()
    assert lab.transport.is_closing


@pytest.mark.parametrize("size", [-5, 100_000_000])
def test_an_impossible_size_closes(lab: Lab, size: int) -> None:
    lab.feed_bytes(struct.pack(">i", size) + b"rest")
    assert lab.transport.is_closing


def test_the_end_releases_files_of_answers_that_waited(lab: Lab) -> None:
    lab.feed("park:a", "range:b", "range:c")
    assert lab.script.file.references == 2
    lab.transport.lose()
    assert lab.script.file.references == 0
    assert lab.script.abandoned == ["a"]
    assert lab.forgotten == [lab.connection]


def test_closing_in_the_middle_of_a_read_releases_files(lab: Lab) -> None:
    lab.feed("range:a", "close", "now:b")
    assert lab.script.file.references == 0
    assert lab.script.started == ["a", ""]


def test_the_memory_of_a_closed_connection_is_free_at_once(lab: Lab) -> None:
    connection, transport = lab.connect()
    lab.feed("now:a", "park:b", connection=connection)
    assert lab.answers(transport) == ["a"]
    parked = lab.script.parked.pop("b")

    def edit(_: object, context: RequestContext = parked) -> Steps[None]:
        yield

    parked.edit = edit
    del parked, edit
    transport.lose()
    lab.forgotten.clear()
    transport.connection = None
    # The test's own variable, and the argument of getrefcount.
    assert sys.getrefcount(connection) == 2


def test_a_request_that_is_parked_after_it_was_judged_is_answered_once(lab: Lab) -> None:
    lab.feed("park:a", "task:b", "now:c")
    lab.script.parked["b"].park()
    lab.connection.end_barrier()
    lab.turn()
    lab.script.answer("a")
    lab.script.answer("b")
    assert lab.answers() == ["a", "b", "c"]


def test_a_request_that_is_parked_after_the_end_does_not_hold_its_connection(lab: Lab) -> None:
    lab.feed("task:a")
    lab.transport.lose()
    lab.script.parked["a"].park()
    lab.connection.end_barrier()
    assert not lab.connection.is_waiting


@pytest.mark.parametrize("end", ["closed here", "lost"])
@pytest.mark.parametrize("has_login", [False, True])
def test_a_closed_connection_serves_no_request(lab: Lab, end: str, *, has_login: bool) -> None:
    connection = lab.connection
    connection.gate = cast(Any, object()) if has_login else None
    if end == "lost":
        lab.transport.lose()
    else:
        connection.close()
    gate = connection.gate
    assert gate is not None
    assert not gate.takes_raw_tokens
    for api_key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.PRODUCE):
        with pytest.raises(ClosedByProtocolError):
            gate.check(api_key)


def test_an_answer_after_the_end_is_dropped(lab: Lab) -> None:
    lab.feed("task:a", "now:b")
    context = lab.script.parked["a"]
    lab.transport.lose()
    context.reply("a")
    lab.connection.end_barrier()
    lab.turn()
    assert lab.script.started == ["a"]


def test_bytes_after_the_end_are_ignored(lab: Lab) -> None:
    lab.connection.close()
    lab.feed("now:a")
    assert lab.script.started == []


def test_the_end_gives_buffers_back(lab: Lab) -> None:
    lab.feed_bytes(struct.pack(">i", 1_000_000) + bytes(200_000))
    assert lab.pool.in_use_bytes
    lab.transport.lose()
    assert not lab.pool.in_use_bytes


def test_a_connection_that_is_not_admitted_is_closed(lab: Lab) -> None:
    lab.admits = False
    connection, transport = lab.connect()
    assert transport.is_closing
    assert connection.is_closed


def test_a_peer_that_left_before_its_admission_is_closed(lab: Lab) -> None:
    """uvloop has no peer name for a connection that was reset at once."""
    connection = Connection(cast(Listener, lab.listener), lab.script.dispatch)
    transport = Transport(lab.loop)
    transport.peername = None
    lab.transports.append(transport)
    transport.attach(connection)
    assert transport.is_closing


def test_a_peer_that_resets_ends_only_its_connection(lab: Lab) -> None:
    other, transport = lab.connect()
    lab.feed("park:a")
    lab.transport.client.close()
    lab.script.answer("a")
    lab.turn()
    assert lab.connection.is_closed
    assert lab.transport.is_closing
    lab.feed("now:b", connection=other)
    assert lab.answers(transport) == ["b"]


def test_connections_wait_for_each_other_when_memory_is_short(lab: Lab) -> None:
    """The connections of one client complete their frames one after the other."""
    lab.pool.budget = FairBudget(5_000_000)
    size, piece = 2_000_000, 300_000
    stream = struct.pack(">i", size) + b"#" * size
    connections = [lab.connection, *(lab.connect()[0] for _ in range(7))]
    rest = dict.fromkeys(connections, stream)
    most_bytes = waits = 0
    for _ in range(60):
        for connection, left in rest.items():
            rest[connection] = lab.feed_bytes(left[:piece], connection) + left[piece:]
            most_bytes = max(most_bytes, lab.pool.budget.held)
            waits += connection.is_held_back
        lab.turn()
    assert not any(rest.values())
    assert waits
    assert 2 * size < most_bytes <= 5_000_000
    assert lab.pool.in_use_bytes == lab.pool.budget.held == 0


def test_a_closed_connection_does_not_keep_the_others_waiting(lab: Lab) -> None:
    lab.pool.budget = FairBudget(3_000_000)
    part = struct.pack(">i", 2_000_000) + b"#" * 1_200_000
    first, second, third = lab.connection, lab.connect()[0], lab.connect()[0]
    for connection in (first, second, third):
        lab.feed_bytes(part, connection)
    assert [connection.is_held_back for connection in (first, second, third)] == [False, True, True]
    second.close()
    first.close()
    lab.turn()
    assert not third.is_held_back


def test_a_client_that_holds_all_memory_does_not_delay_others(lab: Lab) -> None:
    """It keeps what others do not need, and loses the connection that holds the most."""
    lab.pool.budget = FairBudget(4_000_000)
    holders = [lab.connection, *(lab.connect()[0] for _ in range(5))]
    for connection in holders:
        lab.feed_bytes(struct.pack(">i", 2_000_000) + b"#" * 1_990_000, connection)
    assert lab.pool.budget.spare_left < 300_000
    others = [lab.connect()[0] for _ in range(4)]
    for number, connection in enumerate(others):
        connection.principal = Principal(f"User:{number}")
        connection.limit_frames(8 * 1024 * 1024)
        request = "now:" + "x" * 600_000
        assert not lab.feed_bytes(struct.pack(">i", 2 + len(request)) + request.encode(), connection)
        assert not connection.is_held_back
    assert any(connection.is_closed for connection in holders)
    for connection in others:
        lab.feed_bytes(b"!!", connection)
    assert len(lab.script.started) == len(others)


def test_copies_of_requests_count_in_the_memory_for_requests(lab: Lab) -> None:
    """Each counts once, also if its frame had a buffer of its own. Further requests wait for their end."""
    budget = lab.pool.budget = FairBudget(1_000_000)
    lab.feed("keep:a" + "a" * 600_000)
    assert (budget.held, lab.pool.in_use_bytes) == (600_006, 0)
    others = [lab.connect()[0] for _ in range(2)]
    lab.feed("keep:b" + "b" * 200_000, connection=others[0])
    request = b"keep:" + b"c" * 200_000
    rest = lab.feed_bytes(struct.pack(">i", len(request)) + request, others[1])
    assert rest and others[1].is_held_back
    assert budget.held == 800_012
    lab.script.kept[0]()
    lab.turn()
    assert not lab.feed_bytes(rest, others[1])
    assert budget.held == 2 * 200_006 - 1
    for forget in lab.script.kept[1:]:
        forget()
    assert budget.held == 0 and not any(connection.is_closed for connection in (lab.connection, *others))


def test_a_copy_takes_the_place_of_its_request(lab: Lab) -> None:
    """Its room goes to no request that waits."""
    budget = lab.pool.budget = FairBudget(1_000_000)
    lab.feed_bytes(struct.pack(">i", 700_006) + b"keep:a", lab.connection)
    other = lab.connect()[0]
    lab.feed_bytes(struct.pack(">i", 400_000) + b"now:b", other)
    assert other.is_held_back
    assert not lab.feed_bytes(b"a" * 700_000, lab.connection)
    assert not lab.connection.is_closed and lab.script.kept
    assert budget.held == 700_006


def test_a_client_that_keeps_copies_loses_them_to_others(lab: Lab) -> None:
    budget = lab.pool.budget = FairBudget(1_000_000)
    lab.feed("keep:a" + "a" * 800_000)
    other = lab.connect()[0]
    other.principal = Principal("User:other")
    other.limit_frames(1_000_000)
    request = b"keep:" + b"b" * 300_000
    assert not lab.feed_bytes(struct.pack(">i", len(request)) + request, other)
    assert lab.script.dropped == ["a"] and lab.connection.is_closed
    assert not other.is_closed
    assert budget.held == 300_005


def test_a_copy_counts_until_its_request_has_ended(lab: Lab) -> None:
    """The end of the connection does not free it, and the request behind it is not lost."""
    budget = lab.pool.budget = FairBudget(1_000_000)
    lab.feed("keep:a" + "a" * 100_000, "now:b")
    (forget,) = lab.script.kept
    lab.connection.end_barrier()
    lab.turn()
    assert lab.script.started[-1] == "b"
    lab.connection.close()
    assert budget.held == 100_006
    forget()
    assert budget.held == 0


def test_answers_behind_one_that_waits_stop_further_requests(lab: Lab) -> None:
    lab.feed("park:first", *(f"now:{'x' * 400_000}" for _ in range(2)))
    assert not lab.connection.is_held_back
    assert lab.listener.unread_answers.held_by_clients > 800_000
    lab.feed_bytes((struct.pack(">i", 400_004) + b"now:" + b"x" * 400_000) * 2)
    assert len(lab.script.started) == 4
    assert lab.connection.is_held_back
    lab.script.answer("first")
    lab.turn()
    lab.answers()
    lab.turn()
    assert not lab.connection.is_held_back
    assert lab.listener.unread_answers.held == 0


def test_a_client_that_reads_nothing_leaves_memory_for_others(lab: Lab) -> None:
    """It may have the memory that others do not need. Above that, its connections are closed."""
    budget = lab.listener.unread_answers = FairBudget(4_000_000)
    greedy = [lab.connection, *(lab.connect()[0] for _ in range(9))]
    for connection in greedy:
        lab.feed(f"large:{900_000}", connection=connection)
        lab.turn()
    assert any(connection.is_closed for connection in greedy)
    assert 1_500_000 < budget.held <= 3_500_000
    other, transport = lab.connect()
    other.principal = Principal("User:other")
    lab.feed(f"large:{900_000}", connection=other)
    lab.turn()
    assert not other.is_closed
    assert lab.answers(transport) == ["x" * 900_000]


def test_large_answers_are_not_copied(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of 15 MB holds the event loop for up to 10 ms."""
    sent: list[Chunk] = []
    monkeypatch.setattr(Outbox, "send", lambda self, chunks: sent.extend(chunks))
    route = Route(ApiKey.DESCRIBE_GROUPS, 0, Handling(lambda *_: PARKED), Telemetry(ManualClock()))
    context = RequestContext(lab.connection, route, 7, None, 0.0)
    context.park()
    body = b"x" * 300_000
    context.reply(EncodedBody((body,)))
    lab.turn()
    begin, own = sent
    assert begin == struct.pack(">ii", 300_004, 7)
    assert own is body


def test_requests_with_large_answers_start_one_after_the_other(lab: Lab) -> None:
    """A client has few of them at a time, over all its connections, and leaves room for others."""
    lab.listener.unread_answers = FairBudget(4 * LARGE_ANSWER_ROOM_BYTES)
    connections = {name: lab.connect()[0] for name in "abcd"}
    for name, connection in connections.items():
        lab.feed(f"describe:{name}1", f"describe:{name}2", f"now:{name}3", connection=connection)
    other, transport = lab.connect()
    other.principal = Principal("User:other")
    lab.feed("describe:other", connection=other)
    assert lab.script.started == ["a1", "b1", "c1", "other"]
    lab.script.answer("other")
    assert lab.answers(transport) == ["other"]
    answered = ["other"]
    while waiting := [name for name in lab.script.started if name[0] in "abcd" and name in lab.script.parked]:
        assert len(waiting) <= 4
        assert len({name[0] for name in waiting}) == len(waiting)
        answered.append(waiting[0])
        lab.script.answer(waiting[0])
        lab.turn()
    assert sorted(answered) == sorted(["other", *(f"{name}{n}" for name in "abcd" for n in (1, 2))])
    assert len(lab.script.started) == 13
    assert lab.listener.unread_answers.held == 0


def test_small_requests_are_served_while_a_client_holds_all_memory(lab: Lab) -> None:
    lab.pool.budget = FairBudget(4_000_000)
    holders = [lab.connection, *(lab.connect()[0] for _ in range(5))]
    for connection in holders:
        lab.feed_bytes(struct.pack(">i", 2_000_000) + b"#" * 1_990_000, connection)
    other, _ = lab.connect()
    lab.feed(*("now:" + "x" * 10_000 for _ in range(50)), connection=other)
    assert len(lab.script.started) == 50
    assert not any(connection.is_closed for connection in holders)


def test_a_held_back_connection_stops_a_transport_that_reads_nevertheless(lab: Lab) -> None:
    """uvloop starts to read after connection_made, also if that paused the reading. The next read would then
    have no buffer.
    """
    connection, transport = lab.connect()
    connection.hold_back()
    transport.is_reading = True
    lab.feed_bytes(struct.pack(">i", 5) + b"large", connection)
    assert not transport.is_reading


def test_a_muted_connection_starts_no_request_until_its_time_has_passed(lab: Lab) -> None:
    lab.connection.mute(0.5)
    lab.connection.mute(0.1)  # a shorter time changes nothing
    lab.feed_bytes(struct.pack(">i", 5) + b"now:a")
    assert lab.connection.is_held_back
    assert not lab.connection.is_idle_since(lab.loop.time() + 1)
    lab.runner.run(asyncio.sleep(0.15))
    assert lab.script.started == []
    lab.runner.run(asyncio.sleep(0.4))
    assert lab.answers() == ["a"]
    lab.feed("now:b")
    assert lab.answers() == ["b"]


def test_the_end_of_a_task_does_not_end_a_mute(lab: Lab) -> None:
    lab.feed("task:a", "now:b")
    lab.connection.mute(0.5)
    lab.script.end_task("a")
    assert lab.answers() == ["a"]
    lab.runner.run(asyncio.sleep(0.55))
    assert lab.answers() == ["b"]


def test_a_mute_ends_with_its_connection(lab: Lab) -> None:
    lab.connection.mute(60)
    lab.connection.close()
    lab.connection.mute(60)
    lab.turn()
    assert not [handle for handle in lab.loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


def test_many_faulty_clients_cannot_fill_the_log(lab: Lab) -> None:
    with capture_logs() as logs:
        for _ in range(3 * MAX_CLIENT_LINES_PER_SECOND):
            connection, _ = lab.connect()
            connection.refuse("bad")
        lab.log_s += 1
        lab.connection.refuse("bad")
    assert len(logs) == MAX_CLIENT_LINES_PER_SECOND + 1
    assert logs[-1]["lines_omitted_before"] == 2 * MAX_CLIENT_LINES_PER_SECOND
