"""From a frame to its handler and from the handler's answer to bytes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog
from tidelog.broker.connection import ClosedByProtocolError, Connection
from tidelog.broker.handlers import SERVED_APIS, api_versions
from tidelog.broker.outbox import Chunk
from tidelog.broker.request import NO_REPLY, PARKED, EncodedBody, RequestContext
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import SIZE_BYTES, decode_request_header, response_begin

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Of anything but Produce: decoding makes objects of up to 28 times the bytes, and blocks the loop for 0.3
s a MiB at the worst.
"""

STOP_TIMEOUT_MS: Final = 1_000
"""How long a stop waits for requests in work; those may wait for a controller that isn't there."""

_log = structlog.get_logger(__name__)


class Route:
    """How one version of one API is decoded, handled and encoded; made at its first request."""

    __slots__ = ("_begin", "api_key", "decode", "encode", "handle", "keeps_frame", "telemetry", "version")

    def __init__(
        self,
        api_key: ApiKey,
        version: int,
        handle: Callable[[Broker, Any, RequestContext], Any],
        broker: Broker,
        decoder: Callable[[int], codec.Decoder] | None = None,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.handle = handle
        self.keeps_frame = (
            api_key == ApiKey.PRODUCE
        )  # its handler is done with the records before the buffer is used again
        self.decode = codec.request_decoder(api_key, version) if decoder is None else decoder(version)
        self.encode = codec.response_encoder(api_key, version)
        self._begin = response_begin(api_key, version)
        self.telemetry = broker.telemetry.request_metrics(api_key.name_in_kafka, version)

    def counted_as(self, name: str, broker: Broker) -> Route:
        """The same under another name in the metrics."""
        route = Route(self.api_key, self.version, self.handle, broker)
        route.decode, route.telemetry = self.decode, broker.telemetry.request_metrics(name, self.version)
        return route

    def encode_answer(self, context: RequestContext, message: Any) -> list[Chunk]:
        """The whole frame: size, header, body."""
        chunks: list[Chunk] = list(message.chunks) if type(message) is EncodedBody else self.encode(message)
        first = chunks[0]
        assert type(first) is bytes
        begin = self._begin
        size = begin.size - SIZE_BYTES + (len(first) if len(chunks) == 1 else sum(map(len, chunks)))
        context.answer_bytes = size
        chunks[0] = begin.pack(size, context.correlation_id) + first
        self.telemetry.observe(monotonic() - context.started_at, size)
        return chunks


class _ApiVersionsFallback(Route):
    """ApiVersions in a version nobody knows: its body isn't read, the answer is v0 (KIP-511)."""

    __slots__ = ()

    def __init__(self, broker: Broker) -> None:
        super().__init__(ApiKey.API_VERSIONS, 0, lambda *_: api_versions.unsupported_version(), broker)
        self.decode = lambda frame, position: (None, position)


class Dispatcher:
    """The table of routes of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[tuple[int, int], Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Start the request in `frame`. Raises what closes the connection: MalformedMessageError,
        ClosedByProtocolError.
        """
        api_key, version, correlation_id, client_id, position = decode_request_header(frame, 0)
        route = self._routes.get((api_key, version)) or self._new_route(connection, api_key, version)
        if len(frame) > MAX_REQUEST_BYTES and not route.keeps_frame:
            raise ClosedByProtocolError(f"a {route.api_key.name} request of {len(frame)} bytes")
        body = frame if route.keeps_frame else bytes(frame)
        message, _ = route.decode(body, position)
        context = RequestContext(connection, route, correlation_id, client_id, connection.last_active)
        answer = route.handle(self._broker, message, context)
        if answer is PARKED:
            return
        if answer is NO_REPLY:
            route.telemetry.observe(monotonic() - context.started_at, 0)
            return
        if type(answer) is not EncodedBody and isinstance(answer, Coroutine):
            context.park()
            connection.start_barrier()
            task = connection.loop.create_task(self._run(answer, context))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        connection.answer_now(context, context.route.encode_answer(context, answer))

    async def _run(self, answer: Coroutine[Any, Any, Any], context: RequestContext) -> None:
        connection = context.connection
        try:
            reply = await answer
            if reply is not PARKED:  # else it waits on, but holds nobody back any longer
                context.reply(reply)
        except Exception as error:  # noqa: BLE001 - a bug: this request's connection ends, nothing else is hurt
            _log.error("a request failed", api=context.route.api_key.name, exc_info=error)
            connection.close()
        finally:
            connection.end_barrier()

    def _new_route(self, connection: Connection, api_key: int, version: int) -> Route:
        served = SERVED_APIS.get(api_key)
        if served is None:
            raise ClosedByProtocolError(f"API key {api_key} is not served")
        name = ApiKey(api_key).name
        if api_key == ApiKey.API_VERSIONS and version > served.max_version:
            return _ApiVersionsFallback(self._broker)
        if not served.min_version <= version <= served.max_version:
            raise ClosedByProtocolError(
                f"{name} v{version} is not served, v{served.min_version} to v{served.max_version} are"
            )
        module = importlib.import_module(f"tidelog.broker.handlers.{served.module}")
        decoder = getattr(module, "decoder", None)
        route = Route(ApiKey(api_key), version, module.handle, self._broker, decoder)
        self._routes[api_key, version] = route
        return route

    async def stop(self) -> None:
        """Wait for requests that are being handled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_MS / 1000)
