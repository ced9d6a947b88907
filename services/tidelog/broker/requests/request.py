"""The context of a request, and the results that a handler may return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, cast

from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.model.acl import ANONYMOUS, Principal
from tidelog.model.fair_budget import BROKERS
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import SIZE_BYTES, response_begin

if TYPE_CHECKING:
    from tidelog.broker.net.socket_io import Chunk
    from tidelog.broker.security.access import Access
    from tidelog.metrics.telemetry import Telemetry
    from tidelog.model.errors import ErrorCode
    from tidelog.wire.schema import Buffer, Message


class Unanswered(Enum):
    """The results of handlers that return no answer."""

    PARKED = "parked"
    NO_REPLY = "no reply"


PARKED: Final = Unanswered.PARKED
"""Returned by a handler that called `park()`: the answer comes later, by `reply()`."""
NO_REPLY: Final = Unanswered.NO_REPLY
"""Returned by a handler whose request wants no answer (Produce with acks=0)."""
_THROTTLE_TIME: Final = "throttle_time_ms"
_THROTTLE_TIME_BYTES: Final = 4


class ConnectionGate(Protocol):
    """Decides which requests of a connection may be served now."""

    @property
    def takes_raw_tokens(self) -> bool:
        """Whether the next frame is a token without a request header."""
        ...

    def check(self, api_key: int) -> None:
        """Raises ClosedByProtocolError if a request of this API may not be served now."""
        ...


class Authentication(Protocol):
    """The authentication of a connection to a SASL listener (`broker/net/authentication.py`)."""

    @property
    def mechanism(self) -> str:
        """The mechanism that the client chose, or ""."""
        ...

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the client may choose."""
        ...

    @property
    def is_expecting_token(self) -> bool: ...

    @property
    def is_token_login(self) -> bool:
        """Whether the client logged in with a delegation token."""
        ...

    @property
    def failure_delay_s(self) -> float: ...

    def choose(self, mechanism: str, *, is_raw: bool) -> ErrorCode:
        """Takes a SaslHandshake and returns the error code of its response."""
        ...

    def preparation(self, token: bytes) -> Awaitable[None] | None:
        """Returns what has to be awaited before `take`, or None. Raises AuthenticationError."""
        ...

    def take(self, token: bytes) -> tuple[bytes, int]:
        """Takes a token. Returns the server's token and the lifetime of the session in ms, or 0. Raises
        AuthenticationError.
        """
        ...

    def start_deadline(self) -> None:
        """Closes the connection if it is not authenticated in time."""
        ...

    def end(self) -> None:
        """Releases what belongs to a connection that has ended."""
        ...


class RequestSource:
    """The part of a connection that its requests use. `Connection` implements it."""

    __slots__ = (
        "access",
        "authentication",
        "client_software",
        "gate",
        "is_closed",
        "is_of_brokers",
        "last_active",
        "listener_name",
        "loop",
        "on_closed",
        "peer_host",
        "principal",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, listener_name: str) -> None:
        self.principal = ANONYMOUS  # changes when the client authenticates
        self.authentication: Authentication | None = None  # of a connection to a SASL listener
        self.gate: ConnectionGate | None = None  # set while requests have to be checked
        self.access: Access | None = None  # what the authorizer has decided about this connection
        self.client_software = ("", "")  # name and version, as ApiVersions states them
        self.loop = loop
        self.listener_name = listener_name
        self.peer_host = ""
        self.is_closed = False
        self.is_of_brokers = False  # whether clients have other listeners
        self.on_closed: Callable[[RequestSource], None] | None = None  # of a connection with share sessions
        self.last_active = monotonic()

    @property
    def budget_key(self) -> str:
        """The key of this connection in fair budgets: the brokers, the client's principal, or its address."""
        if self.is_of_brokers:
            return BROKERS
        return self.peer_host if self.principal == ANONYMOUS else self.principal

    def wait_for(self, context: RequestContext) -> None:
        """Keeps the place of a request that is answered later."""
        raise NotImplementedError

    def answer_later(self, context: RequestContext, chunks: Sequence[Chunk]) -> None:
        """Sends the answer of a request that waited, once all answers before it are sent."""
        raise NotImplementedError

    def keep_copy(self, size_bytes: int, drop: Callable[[], object]) -> Callable[[], object]:
        """Counts the copy that a request has made of its frame, which it needs no more. Returns the call that
        ends the count. If others need the memory, `drop` is called, and the connection is closed. Raises
        NoMemoryForRequestError.
        """
        raise NotImplementedError

    def at_end_of_turn(self, call: Callable[[], None]) -> None:
        """Calls `call` when what was readable has been served, before the answers are sent."""
        raise NotImplementedError

    def mute(self, duration_s: float) -> None:
        """Starts no further request of this connection for that time."""
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """Closes a connection whose client broke the protocol, and logs the reason."""
        raise NotImplementedError

    def finish(self) -> None:
        """Sends the answers that are ready, and closes the connection."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the connection."""
        raise NotImplementedError


class RequestSteps(Protocol):
    """Observes the steps of one request: handling, append or read, waits, and response. A request has an
    observer only if it is traced. Code that reports a step first checks for None, and otherwise costs
    nothing.
    """

    @property
    def traceparent(self) -> str:
        """The trace's id for the services that the request is passed on to (W3C Trace Context)."""
        ...

    def handling(self) -> AbstractContextManager[None]:
        """Returns the context in which the handler runs. An exception in it ends the request."""
        ...

    def append_began(self, topic: str | None, partition: int, records: Buffer | None) -> None: ...

    def append_ended(self, error_code: int, base_offset: int) -> None: ...

    def read_began(self, topics: Iterable[str]) -> None: ...

    def read_ended(self, size_bytes: int, partition_count: int) -> None: ...

    def wait_began(self, name: str) -> None:
        """Begins a wait with a name of its own. The wait lasts until the next step begins."""
        ...

    def parked(self) -> None:
        """Begins the usual wait of the request's API, unless a wait has begun already."""
        ...

    def answered(self, message: Message | EncodedBody) -> None:
        """The response is about to be encoded and sent."""
        ...

    def abandoned(self) -> None:
        """The connection ended before the response."""
        ...

    def ended(self) -> None:
        """The request ended without a response."""
        ...


class RequestCharge(Protocol):
    """Charges one request to the quotas of its client (`broker/security/charge.py`). A request has one
    only if its client has a quota.
    """

    @property
    def max_fetch_bytes(self) -> int | None:
        """The most bytes that one response to Fetch may have, None without a quota."""
        ...

    def pause(self) -> None:
        """Stops the time of a request that waits."""
        ...

    def timed(self, work: Coroutine[object, None, Reply]) -> Coroutine[object, None, Reply]:
        """Returns a coroutine that does `work` and counts the time in which it runs."""
        ...

    @property
    def is_above_fetch_quota(self) -> bool:
        """Whether the client has used up its quota before this request."""
        ...

    def exceeds_fetch_quota(self, size_bytes: int) -> bool:
        """Charges a Fetch. Returns whether the client must get an empty response instead."""
        ...

    def fetched(self, size_bytes: int) -> None:
        """Charges a ShareFetch, whose records are acquired and therefore sent in any case."""
        ...

    @property
    def has_mutation_quota(self) -> bool:
        """Whether the client's changes of topics are limited."""
        ...

    def may_mutate(self, partitions: int) -> bool:
        """Charges a change of that many partitions if the client is within its quota, and returns whether it
        is.
        """
        ...

    def mutate(self, partitions: int) -> None:
        """Charges a change of that many partitions in any case."""
        ...

    def answered(self, context: RequestContext, message: Message | EncodedBody) -> Message | EncodedBody:
        """Charges a request whose response is ready. Returns the response with its throttle time."""
        ...

    def not_answered(self, context: RequestContext) -> None:
        """Charges a request that wants no response."""
        ...


class RequestContext:
    """One request: the fields of its header, and its place in the connection's order of responses."""

    __slots__ = (
        "answer_bytes",
        "api_version",
        "charge",
        "chunks",
        "client_id",
        "connection",
        "correlation_id",
        "edit",
        "on_abandoned",
        "parked_at",
        "route",
        "started_at",
        "steps",
    )

    def __init__(
        self,
        connection: RequestSource,
        route: Route,
        correlation_id: int,
        client_id: str | None,
        started_at: float,
    ) -> None:
        self.connection = connection
        self.route = route
        self.api_version = route.version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.answer_bytes = 0  # known when the response is encoded
        self.started_at = started_at  # seconds of the monotonic clock at the arrival of the bytes
        self.chunks: Sequence[Chunk] | None = None
        self.edit: Callable[[Message], Steps[None]] | None = None
        """Changes the response before it is sent: adds what was denied, and removes what is hidden. The steps
        run in slices if a coroutine returns the response, otherwise in one turn.
        """
        self.charge: RequestCharge | None = None  # of a client with quotas
        self.on_abandoned: Callable[[], object] | None = None
        self.parked_at: float  # known when the request is parked
        self.steps: RequestSteps | None = None

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    @property
    def traceparent(self) -> str:
        """The trace context for services that receive this request; empty if the request is not traced."""
        return "" if self.steps is None else self.steps.traceparent

    @property
    def host(self) -> str:
        return self.connection.peer_host

    @property
    def principal(self) -> Principal:
        """The identity of the client, as the connection authenticated it."""
        return self.connection.principal

    def park(self, on_abandoned: Callable[[], object] | None = None) -> Unanswered:
        """Keeps the place in the order of responses. `on_abandoned` is called if the connection ends before
        the response.
        """
        if self.steps is not None:
            self.steps.parked()
        self.on_abandoned = on_abandoned
        self.parked_at = monotonic()
        self.connection.wait_for(self)
        return PARKED

    def reply(self, message: Message | EncodedBody, body: EncodedBody | None = None) -> None:
        """Sends the response of a parked request. `body` is the same response if it is encoded already."""
        self.on_abandoned = None
        if self.steps is not None:
            self.steps.answered(message)
        if not self.connection.is_closed:
            self.route.telemetry.waits.took(monotonic() - self.parked_at)
            self.connection.answer_later(self, self.route.encode_answer(self, body or message))
        self.edit = None  # it may refer to this context

    def end_without_reply(self) -> None:
        """Ends a parked request whose client wants no response."""
        self.on_abandoned = None
        if self.charge is not None:
            self.charge.not_answered(self)
        if self.steps is not None:
            self.steps.ended()
        if not self.connection.is_closed:
            self.route.telemetry.observe(monotonic() - self.started_at, 0)
            self.connection.answer_later(self, ())

    def abandon(self) -> None:
        """Ends the request, because the connection has ended."""
        if self.on_abandoned is not None:
            self.on_abandoned()
            self.on_abandoned = None
        self.edit = None  # it may refer to this context
        if self.steps is not None:
            self.steps.abandoned()


class EncodedBody:
    """A response whose body is already encoded."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks


Reply: TypeAlias = "Message | EncodedBody | Unanswered"
"""A response, encoded or not, or the reason why there is none now."""
Answer: TypeAlias = "Reply | Coroutine[object, None, Reply]"
"""A handler's result. A coroutine holds back the later requests of the connection until it returns."""
Handler: TypeAlias = "Callable[[Any, RequestContext], Answer]"
"""The first argument is a request of the handler's own API. The type of a table of handlers cannot express
that.
"""


DecoderOfVersion: TypeAlias = Callable[[int], codec.Decoder]


class Handling(NamedTuple):
    """An API's handler, and its own decoder by version if the usual one does not fit."""

    handle: Handler
    decoder: DecoderOfVersion | None = None
    may_answer_large: bool = False


COPIED_BYTES: Final = 64 * 1024
"""The largest body that is copied behind its header: a system call with two parts costs about as much."""


class Route:
    """The decoder, handler and encoder of one version of one API. It is created at the first request."""

    __slots__ = (
        "_begin",
        "_encode_in_steps",
        "_handling",
        "api_key",
        "decode",
        "encode",
        "handle",
        "keeps_frame",
        "may_answer_large",
        "telemetry",
        "version",
    )

    def __init__(
        self,
        api_key: ApiKey,
        version: int,
        handling: Handling,
        telemetry: Telemetry,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self._handling = handling
        self.handle = handling.handle
        self.keeps_frame = (
            api_key == ApiKey.PRODUCE
        )  # the handler finishes with the records before the buffer is reused
        self.may_answer_large = handling.may_answer_large
        self.decode = (
            codec.request_decoder(api_key, version) if handling.decoder is None else handling.decoder(version)
        )
        self.encode = codec.response_encoder(api_key, version)
        self._encode_in_steps: codec.StepEncoder | None = None  # made at its first use
        self._begin = response_begin(api_key, version)
        self.telemetry = telemetry.request_metrics(api_key.name_in_kafka, version)

    def counted_as(self, name: str, telemetry: Telemetry) -> Route:
        """Returns the same route under another name in the metrics."""
        route = Route(self.api_key, self.version, self._handling, telemetry)
        route.telemetry = telemetry.request_metrics(name, self.version)
        return route

    def encode_answer(self, context: RequestContext, message: Message | EncodedBody) -> list[Chunk]:
        """Returns the complete frame: size, header and body."""
        if context.edit is not None:
            message = all_at_once(self._edited(context, context.edit, message))
        if context.charge is not None:
            message = context.charge.answered(context, message)
        chunks: list[Chunk] = list(message.chunks) if type(message) is EncodedBody else self.encode(message)
        first = chunks[0]
        assert type(first) is bytes
        begin = self._begin
        size = begin.size - SIZE_BYTES + (len(first) if len(chunks) == 1 else sum(map(len, chunks)))
        context.answer_bytes = size
        if len(first) > COPIED_BYTES:
            chunks.insert(0, begin.pack(size, context.correlation_id))
        else:
            chunks[0] = begin.pack(size, context.correlation_id) + first
        self.telemetry.observe(monotonic() - context.started_at, size)
        return chunks

    async def encode_in_slices(
        self, context: RequestContext, message: Message | EncodedBody
    ) -> EncodedBody | None:
        """Encodes a response of any size without holding the event loop for long. Returns None if
        `encode_answer` has to encode it.
        """
        if context.edit is not None:
            message = await run_in_slices(self._edited(context, context.edit, message))
        if isinstance(message, EncodedBody):
            return message
        encode = self._encode_in_steps
        if encode is None:
            encode = codec.response_encoder_in_steps(self.api_key, self.version)
            self._encode_in_steps = encode
        return EncodedBody(await run_in_slices(encode(message)))

    def with_throttle_time(self, message: Message | EncodedBody, throttle_ms: int) -> Message | EncodedBody:
        """Returns a copy of the response with this throttle time, if the API's response states one."""
        fields = codec.response_class(self.api_key).FIELDS
        if type(message) is EncodedBody and fields[0].name == _THROTTLE_TIME:
            if not fields[0].is_in(self.version):
                return message
            first = bytes(message.chunks[0])  # type: ignore[arg-type]  # the first chunk is no file range
            throttle = throttle_ms.to_bytes(_THROTTLE_TIME_BYTES, "big")
            return EncodedBody((throttle + first[_THROTTLE_TIME_BYTES:], *message.chunks[1:]))
        decoded = self._decoded(message)
        if any(field.name == _THROTTLE_TIME for field in fields):
            # A copy, because a handler may give the same object to several requests.
            return cast("Message", replace(cast(Any, decoded), throttle_time_ms=throttle_ms))
        return decoded

    def _edited(
        self,
        context: RequestContext,
        edit: Callable[[Message], Steps[None]],
        message: Message | EncodedBody,
    ) -> Steps[Message]:
        context.edit = None
        decoded = self._decoded(message)
        yield from edit(decoded)
        return decoded

    def _decoded(self, message: Message | EncodedBody) -> Message:
        if type(message) is not EncodedBody:
            return cast("Message", message)
        body = b"".join(bytes(chunk) for chunk in message.chunks)  # type: ignore[arg-type]  # no file ranges
        decoded: Message = codec.response_decoder(self.api_key, self.version)(body, 0)[0]
        return decoded
