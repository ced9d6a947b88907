"""What a handler knows of the request it answers, and the ways to answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tidelog.runtime.purgatory import DelayedOperation

if TYPE_CHECKING:
    from tidelog.broker.connection import Connection
    from tidelog.broker.dispatch import Route
    from tidelog.broker.outbox import Chunk


class _Sentinel:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


PARKED: Final = _Sentinel("PARKED")
"""Returned by a handler that called `park()`: the answer comes later, by `reply()`."""
NO_REPLY: Final = _Sentinel("NO_REPLY")
"""Returned by a handler whose request wants no answer (Produce with acks=0)."""


class RequestContext:
    """One request on its way: its header's facts and its place in the connection's order of answers."""

    __slots__ = (
        "answer_bytes",
        "api_version",
        "chunks",
        "client_id",
        "connection",
        "correlation_id",
        "on_abandoned",
        "parked_at",
        "route",
        "started_at",
    )

    traceparent = ""
    """What a coordinator is told that the request is passed on to; only a traced request has one."""

    def __init__(
        self,
        connection: Connection,
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
        self.answer_bytes: int  # known when it is encoded
        self.started_at = started_at  # seconds of the monotonic clock, when its bytes arrived
        self.chunks: Sequence[Chunk] | None = None
        self.on_abandoned: Callable[[], object] | None = None
        self.parked_at: float  # known when it is parked

    @property
    def listener_name(self) -> str:
        return self.connection.listener.name

    @property
    def host(self) -> str:
        return self.connection.peer_host

    def park(self, on_abandoned: Callable[[], object] | None = None) -> _Sentinel:
        """Keep the place in the order of answers; `on_abandoned` is called if the connection ends before
        the answer.
        """
        self.on_abandoned = on_abandoned
        self.parked_at = monotonic()
        self.connection.wait_for(self)
        return PARKED

    def reply(self, message: Any) -> None:
        """Answer a parked request."""
        self.on_abandoned = None
        if not self.connection.is_closed:
            self.route.telemetry.waits.took(monotonic() - self.parked_at)
            self.connection.answer_later(self, self.route.encode_answer(self, message))

    def abandon(self) -> None:
        """The connection is gone."""
        if self.on_abandoned is not None:
            self.on_abandoned()
            self.on_abandoned = None


class DelayedRequest(DelayedOperation):
    """A parked request in a purgatory."""

    __slots__ = ("context",)

    def __init__(self, context: RequestContext) -> None:
        super().__init__()
        self.context = context


class EncodedBody:
    """An answer whose body is encoded already."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
