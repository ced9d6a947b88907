"""Finds the handler of each request and encodes the handler's response."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Final

import structlog

from tidelog.broker.net.connection import ClosedByProtocolError, Connection
from tidelog.broker.requests.apis import APIS, listed_versions
from tidelog.broker.requests.request import (
    NO_REPLY,
    PARKED,
    EncodedBody,
    Handling,
    Reply,
    RequestContext,
    Route,
)
from tidelog.kernel.slices import TaskSet
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import SIZE_BYTES, decode_request_header
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from tidelog.broker.net.socket_io import Chunk
    from tidelog.broker.requests.chain import RequestChain
    from tidelog.broker.requests.tracing import RequestTracer
    from tidelog.broker.security.charge import RequestQuotas
    from tidelog.metrics.telemetry import Telemetry
    from tidelog.wire.schema import Message

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""The limit for all APIs except Produce. Decoding a request creates objects of up to 28 times its size, and
may block the event loop for 0.3 s per MiB.
"""

STOP_TIMEOUT_MS: Final = 1_000
"""The time that a stop waits for requests in progress, which may wait for a controller that is down."""

_log = structlog.get_logger(__name__)


class _ApiVersionsFallback(Route):
    """The route of an ApiVersions request in an unknown version. Its body is not read, and the response is v0
    (KIP-511).
    """

    __slots__ = ()

    def __init__(self, telemetry: Telemetry) -> None:
        versions = [ApiVersion(*listed) for listed in listed_versions(has_telemetry=False)]
        answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=versions)
        handling = Handling(lambda *_: answer)
        super().__init__(ApiKey.API_VERSIONS, 0, handling, telemetry)
        self.decode = lambda frame, position: (None, position)


class _TokenRoute(Route):
    """The route of a SASL token without a request header, which follows a SaslHandshake v0. The response is
    the server's token without a header. A failure has no response.
    """

    __slots__ = ()

    def __init__(self, handling: Handling, telemetry: Telemetry) -> None:
        super().__init__(ApiKey.SASL_AUTHENTICATE, 0, handling, telemetry)
        self.decode = lambda frame, position: (SaslAuthenticateRequest(frame), len(frame))

    def encode_answer(self, context: RequestContext, message: Message | EncodedBody) -> list[Chunk]:
        assert isinstance(message, SaslAuthenticateResponse)
        token = bytes(message.auth_bytes)
        context.answer_bytes = 0 if message.error_code else SIZE_BYTES + len(token)
        return [] if message.error_code else [len(token).to_bytes(SIZE_BYTES, "big") + token]

    async def encode_in_slices(self, context: RequestContext, message: Message | EncodedBody) -> None:
        return None


class Dispatcher:
    """The dispatcher of one broker, with its table of routes."""

    def __init__(
        self,
        chain: RequestChain,
        telemetry: Telemetry,
        quotas: RequestQuotas,
        observer: RequestTracer | None = None,
    ) -> None:
        self._chain = chain
        self._quotas = quotas
        self._observer = observer
        self._telemetry = telemetry
        self._routes: dict[tuple[int, int], Route] = {}
        self._tasks: TaskSet[None] = TaskSet()

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Starts the request in `frame`. Raises MalformedMessageError or ClosedByProtocolError to close the
        connection.
        """
        gate = connection.gate
        if gate is not None and gate.takes_raw_tokens:
            self._dispatch_token(connection, frame)
            return
        api_key, version, correlation_id, client_id, position = decode_request_header(frame, 0)
        if gate is not None:
            gate.check(api_key)
        route = self._routes.get((api_key, version)) or self._new_route(connection, api_key, version)
        if route.may_answer_large and not connection.has_room_for_large_answer(len(frame)):
            return
        if len(frame) > MAX_REQUEST_BYTES and not route.keeps_frame:
            raise ClosedByProtocolError(f"a {route.api_key.name} request of {len(frame)} bytes")
        body = frame if route.keeps_frame else bytes(frame)
        message, _ = route.decode(body, position)
        context = RequestContext(connection, route, correlation_id, client_id, connection.last_active)
        if self._quotas.is_enforced:
            context.charge = self._quotas.charge(context, len(frame))
        if self._observer is not None:
            context.steps = steps = self._observer.begin(connection, context, message, len(frame))
            if steps is not None:
                with steps.handling():
                    self._handle(connection, context, message)
                return
        self._handle(connection, context, message)

    def _dispatch_token(self, connection: Connection, frame: memoryview) -> None:
        route = _TokenRoute(self._chain.handling(ApiKey.SASL_AUTHENTICATE), self._telemetry)
        message, _ = route.decode(bytes(frame), 0)
        self._handle(connection, RequestContext(connection, route, 0, None, connection.last_active), message)

    def _handle(self, connection: Connection, context: RequestContext, message: Message) -> None:
        route, steps = context.route, context.steps
        answer = route.handle(message, context)
        charge = context.charge
        if answer is PARKED:
            if charge is not None:
                charge.pause()
            return
        if answer is NO_REPLY:
            if charge is not None:
                charge.not_answered(context)
            route.telemetry.observe(monotonic() - context.started_at, 0)
            if steps is not None:
                steps.ended()
            return
        if type(answer) is not EncodedBody and isinstance(answer, Coroutine):
            if steps is not None:
                steps.wait_began("handler")
            context.park()
            connection.start_barrier()
            if charge is not None:
                answer = charge.timed(answer)
            self._tasks.start(self._run(answer, connection, context), loop=connection.loop)
            return
        if steps is not None:
            steps.answered(answer)
        connection.answer_now(context, context.route.encode_answer(context, answer))

    async def _run(
        self, answer: Coroutine[object, None, Reply], connection: Connection, context: RequestContext
    ) -> None:
        try:
            reply = await answer
            if reply is NO_REPLY:
                context.end_without_reply()
            elif reply is not PARKED:  # else the request still waits, but later requests may start
                context.reply(reply, await context.route.encode_in_slices(context, reply))
        except Exception as error:  # noqa: BLE001 - a bug: this request's connection ends, nothing else is hurt
            _log.error("a request failed", api=context.route.api_key.name, exc_info=error)
            connection.close()
        finally:
            connection.end_barrier()

    def _new_route(self, connection: Connection, api_key: int, version: int) -> Route:
        served = APIS.get(api_key)
        if served is None:
            raise ClosedByProtocolError(f"API key {api_key} is not served")
        name = ApiKey(api_key).name
        if api_key == ApiKey.API_VERSIONS and version > served.max_version:
            return _ApiVersionsFallback(self._telemetry)
        if not served.min_version <= version <= served.max_version:
            raise ClosedByProtocolError(
                f"{name} v{version} is not served; versions {served.min_version} to {served.max_version} are"
            )
        route = Route(ApiKey(api_key), version, self._chain.handling(api_key), self._telemetry)
        self._routes[api_key, version] = route
        return route

    async def stop(self) -> None:
        """Waits for requests in progress."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_MS / 1000)
