"""Kafka requests between simulated processes, with the broker's real handlers and codec but without
sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from sim.loop import MS_PER_S, PROCESS, SimProcess
from sim.network import REFUSED_AFTER_S, Network
from tidelog.broker.replication.leader_connection import (
    MAX_IN_FLIGHT_REQUESTS,
    ConnectionLostError,
    Question,
)
from tidelog.broker.requests.request import NO_REPLY, PARKED, EncodedBody, Route
from tidelog.model.acl import ANONYMOUS
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey

LISTENER = "PLAINTEXT"


class SimConnection:
    """The server's end of a connection, as handlers see it."""

    def __init__(self, process: SimProcess) -> None:
        self.loop = process.loop
        self.is_closed = False
        self.last_active = 0.0
        self.listener_name = LISTENER
        self.peer_host = self.budget_key = "simulated"
        self.principal = ANONYMOUS
        self.gate = None

    def close(self) -> None:
        self.is_closed = True

    def at_end_of_turn(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)

    def wait_for(self, context: SimRequest) -> None:
        """Does nothing. The sender of the answers keeps their order, if necessary."""


class SimRequest:
    """A `RequestContext` whose `reply` sends the answer."""

    def __init__(self, process: SimProcess, route: Route, reply: Callable[[Any], None]) -> None:
        self.connection = SimConnection(process)
        self.route = route
        self.api_version = route.version
        self.client_id = "simulated"
        self.host = "simulated"
        self.principal = ANONYMOUS
        self.traceparent = ""
        self.steps = None
        self.charge = None
        self.listener_name = LISTENER
        self.correlation_id = 0
        self.edit = None
        self.started_at = 0.0
        self._reply = reply

    def park(self, on_abandoned: Callable[[], None] | None = None) -> Any:
        return PARKED

    def reply(self, message: Any) -> None:
        if not self.connection.is_closed:
            self._reply(message)


def _route(node: Any, request: Encoded) -> Route:
    """Returns the route, which is made at the first request of its kind, as in the dispatcher."""
    key = (request.api_key, request.version)
    route: Route | None = node.routes.get(key)
    if route is None:
        handling = node.handlers.handling(request.api_key)
        route = Route(ApiKey(request.api_key), request.version, handling, node.broker.telemetry)
        node.routes[key] = route
    return route


class Encoded:
    """A request as bytes. Each delivery decodes a message of its own from it."""

    def __init__(self, question: Question, request: Any) -> None:
        self.api_key = question.api_key
        self.version = question.version
        self.name = ApiKey(self.api_key).name
        self._question = question
        self._bytes = b"".join(bytes(chunk) for chunk in question.encode(request))

    def decode(self, route: Route) -> Any:
        message, _ = route.decode(memoryview(bytearray(self._bytes)), 0)
        return message

    def encode_answer(self, answer: Any) -> bytes:
        if type(answer) is EncodedBody:
            chunks = answer.chunks
        else:
            chunks = codec.response_encoder(self.api_key, self.version)(answer)
        return b"".join(
            chunk.read() if not isinstance(chunk, bytes | bytearray | memoryview) else bytes(chunk)
            for chunk in chunks
        )

    def decode_answer(self, encoded: bytes) -> Any:
        answer, _ = self._question.decode(memoryview(encoded), 0)
        return answer


def serve(process: SimProcess, request: Encoded, reply: Callable[[bytes], None]) -> None:
    """Serves a request in the broker's process like a connection. If there is no reply, the connection was
    closed.
    """
    node = process.service
    if node is None or not node.is_serving:
        return
    route = _route(node, request)
    context: Any = SimRequest(process, route, lambda answer: reply(request.encode_answer(answer)))
    answer = route.handle(request.decode(route), context)
    if answer is PARKED or answer is NO_REPLY:
        return
    if type(answer) is CoroutineType:
        process.spawn(_answer_later(answer, context))
    else:
        context.reply(answer)


async def _answer_later(answer: CoroutineType[Any, Any, Any], context: SimRequest) -> None:
    reply = await answer
    if reply is not PARKED:
        context.reply(reply)


async def ask(
    network: Network,
    broker: str,
    message: Any,
    version: int,
    *,
    timeout_s: float,
    ordered: bool = False,
    over_tcp: bool = False,
) -> Any:
    """Returns the broker's answer to a client. Raises ConnectionError if there is none in time.

    With `over_tcp`, the request arrives once, and never after the client has given it up.
    """
    source = PROCESS.get()
    assert source is not None
    answered: asyncio.Future[bytes] = source.loop.create_future()
    request = Encoded(Question(message.API_KEY, version), message)

    def arrive(process: SimProcess) -> None:
        if not (over_tcp and answered.done()):
            serve(process, request, lambda answer: reply(process, answer))

    def reply(process: SimProcess, answer: bytes) -> None:
        network.send(process, source.name, lambda asker: back(asker, answer), request.name + " answered")

    def back(asker: SimProcess, answer: bytes) -> None:
        if asker is source and not answered.done():
            answered.set_result(answer)

    receiver = network.processes.get(broker)
    if receiver is None or not receiver.is_alive:
        await asyncio.sleep(REFUSED_AFTER_S)
        raise ConnectionError(f"{broker} is not there")
    network.send(
        source,
        broker,
        arrive,
        request.name,
        stream=message.API_KEY if ordered else None,
        repeatable=not over_tcp,
    )
    try:
        return request.decode_answer(await asyncio.wait_for(answered, timeout_s))
    except TimeoutError as error:
        raise ConnectionError(f"{broker} gave no answer") from error


class _Asked:
    """One request on a connection. `answer` is set when the leader has it ready."""

    def __init__(self, request: Encoded, on_answer: Callable[[Any], None], deadline_s: float) -> None:
        self.request = request
        self.on_answer = on_answer
        self.deadline_s = deadline_s
        self.answer: bytes | None = None


class SimLeaderConnection:
    """A `LeaderConnection`, on which everything arrives in order and once, or the connection is lost."""

    def __init__(self, source: SimProcess, leader: SimProcess, on_lost: Callable[[str], None]) -> None:
        self.is_closed = False
        self._source = source
        self._leader = leader
        self._on_lost = on_lost
        self._pending: deque[_Asked] = deque()
        self._unanswered: deque[_Asked] = deque()
        self._is_broken = False

    @property
    def in_flight_count(self) -> int:
        return len(self._pending)

    def send(
        self, question: Question, request: Any, timeout_ms: int, on_answer: Callable[[Any], None]
    ) -> None:
        if self.is_closed:
            raise ConnectionLostError("the connection is closed")
        if len(self._pending) >= MAX_IN_FLIGHT_REQUESTS:
            raise BufferError(f"{len(self._pending)} requests are in flight")
        loop = self._source.loop
        asked = _Asked(Encoded(question, request), on_answer, loop.now + timeout_ms / MS_PER_S)
        self._pending.append(asked)
        loop.call_later(timeout_ms / MS_PER_S, self._check_deadline, asked)
        self._transmit(self._source, self._leader, lambda: self._arrived(asked), asked.request.name)

    def close(self) -> None:
        self.is_closed = True
        self._pending.clear()

    def _transmit(
        self, source: SimProcess, target: SimProcess, arrived: Callable[[], None], what: str
    ) -> None:
        if self._is_broken:
            return

        def arrive(process: SimProcess) -> None:
            if process is target and not self._is_broken:
                arrived()

        source.network.send(
            source, target.name, arrive, what, stream=self, repeatable=False, on_lost=self._break
        )

    def _break(self) -> None:
        """Breaks the connection. After a loss, nothing more arrives on it."""
        self._is_broken = True

    def _arrived(self, asked: _Asked) -> None:
        """Runs at the leader."""
        self._unanswered.append(asked)

        def reply(answer: bytes) -> None:
            asked.answer = answer
            while self._unanswered and self._unanswered[0].answer is not None:
                ready = self._unanswered.popleft()
                self._transmit(
                    self._leader,
                    self._source,
                    lambda ready=ready: self._answered(ready),
                    asked.request.name + " answered",
                )

        serve(self._leader, asked.request, reply)

    def _answered(self, asked: _Asked) -> None:
        """Runs at the follower."""
        if self.is_closed or not self._pending:
            return
        assert self._pending.popleft() is asked, "answers come in order"
        asked.on_answer(asked.request.decode_answer(asked.answer or b""))

    def _check_deadline(self, asked: _Asked) -> None:
        if not self.is_closed and asked in self._pending:
            self.close()
            self._on_lost("the leader did not answer in time")


async def open_connection(
    endpoint: Any,
    pool: Any,
    *,
    client_id: str,
    receive_buffer_bytes: int,
    timeout_ms: int,
    on_lost: Any,
    tls: None = None,
) -> SimLeaderConnection:
    """Replaces `leader_connection.open_connection`. Raises ConnectionLostError."""
    source = PROCESS.get()
    assert source is not None

    async def accept(process: SimProcess) -> SimProcess:
        return process

    try:
        leader = await source.network.call(
            endpoint.host, accept, "connect", timeout_s=timeout_ms / MS_PER_S, repeatable=False
        )
    except ConnectionError as error:
        raise ConnectionLostError(str(error)) from error
    return SimLeaderConnection(source, leader, on_lost)
