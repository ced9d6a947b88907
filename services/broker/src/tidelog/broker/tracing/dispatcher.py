"""The dispatcher of a broker that traces: some requests go through their handlers with a trace."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.connection import ClosedByProtocolError, Connection
from tidelog.broker.dispatch import MAX_REQUEST_BYTES, Dispatcher, Route
from tidelog.broker.request import NO_REPLY, PARKED
from tidelog.broker.tracing import traced_fetch, traced_produce
from tidelog.broker.tracing.traced_request import TracedRequest, attributes_of
from tidelog.model.trace_context import part_of
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_request_header

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.runtime.tracing import Tracing

_HANDLERS: Final[dict[int, Callable[[Any, Any, Any], Any]]] = {
    ApiKey.PRODUCE: traced_produce.handle,
    ApiKey.FETCH: traced_fetch.handle,
}


class TracingDispatcher(Dispatcher):
    def __init__(self, broker: Broker, tracing: Tracing) -> None:
        super().__init__(broker)
        self._tracing = tracing
        self._is_sampled = tracing.is_sampled

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        if not self._is_sampled() or not self._dispatch_traced(connection, frame):
            super().dispatch(connection, frame)

    def _dispatch_traced(self, connection: Connection, frame: memoryview) -> bool:
        """As `dispatch`; False, with nothing done, for what isn't a client's or must not be served."""
        api_key, version, correlation_id, client_id, position = decode_request_header(frame, 0)
        route = self._routes.get((api_key, version))
        if route is None or (len(frame) > MAX_REQUEST_BYTES and not route.keeps_frame):
            return False  # the first of its kind, which is made for the next
        body = frame if route.keeps_frame else bytes(frame)
        message, _ = route.decode(body, position)
        if api_key == ApiKey.FETCH and traced_fetch.is_of_a_follower(message):
            return False
        attributes = attributes_of(route, connection, client_id, len(frame))
        waited_s = monotonic() - connection.last_active
        trace = self._tracing.begin(route.api_key.name_in_kafka, attributes, waited_s=waited_s)
        context = TracedRequest(connection, route, correlation_id, client_id, connection.last_active, trace)
        with part_of(trace):
            self._handle(connection, route, message, context)
        return True

    def _handle(self, connection: Connection, route: Route, message: Any, context: TracedRequest) -> None:
        handler: Callable[[Any, Any, Any], Any] = _HANDLERS.get(route.api_key, route.handle)
        try:
            answer = handler(self._broker, message, context)
        except BaseException as error:
            context.trace.fail(
                "connection closed" if isinstance(error, ClosedByProtocolError) else repr(error)
            )
            context.trace.end()
            raise
        if answer is PARKED:
            return
        if answer is NO_REPLY:
            route.telemetry.observe(monotonic() - context.started_at, 0)
            context.ended_without_answer()
            return
        if isinstance(answer, Coroutine):
            context.trace.begin_wait("handler")
            context.park()
            connection.start_barrier()
            task = connection.loop.create_task(self._run(answer, context))  # it takes the trace along
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        context.answered(answer)
        connection.answer_now(context, context.route.encode_answer(context, answer))
