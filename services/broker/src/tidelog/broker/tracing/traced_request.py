"""A request on its way, with the trace of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.request import RequestContext, _Sentinel
from tidelog.model.errors import ErrorCode
from tidelog.model.trace_context import Attributes, part_of
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.connection import Connection
    from tidelog.broker.dispatch import Route
    from tidelog.runtime.tracing import RequestTrace

SEND_POLL_S: Final = 0.005
MAX_SEND_POLLS: Final = 2_000
"""After ten seconds a client that does not take its answer is not waited for any longer."""
_WAITS: Final = {
    ApiKey.PRODUCE: "replication wait",
    ApiKey.FETCH: "wait for records",
    ApiKey.JOIN_GROUP: "coordinator",
    ApiKey.SYNC_GROUP: "coordinator",
    ApiKey.HEARTBEAT: "coordinator",
    ApiKey.LEAVE_GROUP: "coordinator",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "coordinator",
    ApiKey.OFFSET_COMMIT: "coordinator",
    ApiKey.OFFSET_FETCH: "coordinator",
    ApiKey.TXN_OFFSET_COMMIT: "coordinator",
    ApiKey.INIT_PRODUCER_ID: "coordinator",
    ApiKey.ADD_PARTITIONS_TO_TXN: "coordinator",
    ApiKey.ADD_OFFSETS_TO_TXN: "coordinator",
    ApiKey.END_TXN: "coordinator",
}


class TracedRequest(RequestContext):
    """Its steps: queue (from the bytes' arrival to its turn), what the handler does, what it waits for,
    response (until the socket has taken the answer).
    """

    __slots__ = ("_polls", "trace", "traceparent")

    def __init__(
        self,
        connection: Connection,
        route: Route,
        correlation_id: int,
        client_id: str | None,
        started_at: float,
        trace: RequestTrace,
    ) -> None:
        super().__init__(connection, route, correlation_id, client_id, started_at)
        self.trace = trace
        self.traceparent = trace.traceparent
        self._polls = 0

    def park(self, on_abandoned: Callable[[], object] | None = None) -> _Sentinel:
        if not self.trace.is_waiting:
            self.trace.begin_wait(_WAITS.get(self.route.api_key, "handler"))
        return super().park(on_abandoned)

    def reply(self, message: Any) -> None:
        self.answered(message)
        with part_of(self.trace):
            super().reply(message)

    def abandon(self) -> None:
        super().abandon()
        self.trace.fail("connection closed")
        self.trace.end()

    def answered(self, message: object) -> None:
        """It is about to be encoded and sent. The trace ends when it has been."""
        trace = self.trace
        trace.end_wait()
        error = next((code for code in error_codes(message) if code), 0)
        if error:
            trace.fail(_name_of(error))
        trace.begin_wait("response")
        # The answer leaves at the end of this turn of the loop, or of the next.
        loop = self.connection.loop
        loop.call_soon(lambda: loop.call_soon(self._end_when_sent))

    def ended_without_answer(self) -> None:
        self.trace.end()

    def _end_when_sent(self) -> None:
        connection = self.connection
        self._polls += 1
        is_unsent = connection.unsent_bytes or connection.is_waiting_for(self)
        if is_unsent and not connection.is_closed and self._polls < MAX_SEND_POLLS:
            connection.loop.call_later(SEND_POLL_S, self._end_when_sent)
        else:
            self.trace.end()


def attributes_of(route: Route, connection: Connection, client_id: str | None, size: int) -> Attributes:
    """Of any request, by the semantic conventions for messaging where they have a name."""
    found: dict[str, str | int | float | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": route.api_key.name_in_kafka,
        "messaging.message.envelope.size": size,
        "network.peer.address": connection.peer_host,
        "network.peer.port": connection.peer_port,
        "server.port": connection.listener.port,
        "tidelog.listener": connection.listener.name,
        "tidelog.api_version": route.version,
    }
    if client_id is not None:
        found["messaging.client.id"] = client_id
    kind = {ApiKey.PRODUCE: "send", ApiKey.FETCH: "receive", ApiKey.OFFSET_COMMIT: "settle"}.get(
        route.api_key
    )
    if kind is not None:
        found["messaging.operation.type"] = kind
    return found


def error_codes(message: Any) -> Iterator[int]:
    """Of an answer and of its partitions."""
    yield getattr(message, "error_code", 0)
    for topic in getattr(message, "responses", ()):
        partitions = getattr(topic, "partition_responses", None) or getattr(topic, "partitions", None)
        for partition in partitions or ():
            yield partition.error_code


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
