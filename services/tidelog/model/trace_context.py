"""The trace that the current work belongs to, if any. Log lines and calls to other services carry its ids.

A trace crosses processes in the header `traceparent` of the W3C recommendation Trace Context. This module
does not need OpenTelemetry. `tracing/tracer.py` does, and it is imported only if tracing is on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

TRACEPARENT: Final = "traceparent"
Attributes: TypeAlias = "Mapping[str, str | int | float | bool]"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


class SpanIds(NamedTuple):
    """The ids of a span in this process or another."""

    trace_id: int
    span_id: int
    is_sampled: bool


class Trace(Protocol):
    """A trace that this process takes part in."""

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent` for calls to other services."""
        ...

    @property
    def ids(self) -> SpanIds: ...

    def step(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[object]:
        """Returns a context that traces a part of the work. It records an exception and lets it pass."""
        ...


class CallTrace(Trace, Protocol):
    """The trace of a call from another tidelog service."""

    def fail(self, error: str) -> None: ...

    def end(self) -> None: ...


class CallTracing(Protocol):
    """Continues traces that other tidelog services began."""

    def go_on(self, traceparent: str, name: str, attributes: Attributes) -> CallTrace | None:
        """Begins a span of that trace.

        Returns None if `traceparent` is not valid or its trace is not sampled.
        """
        ...


CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def part_of(trace: Trace) -> Iterator[None]:
    """Makes `trace` the current one for the work done in this context."""
    token = CURRENT.set(trace)
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def traced_step(name: str, attributes: Attributes | None = None) -> Iterator[None]:
    """Traces the work done in this context as a step of the current trace, if there is one."""
    trace = CURRENT.get()
    if trace is None:
        yield
    else:
        with trace.step(name, attributes):
            yield


def parse_traceparent(text: str) -> SpanIds | None:
    """Returns the ids in a `traceparent` (W3C Trace Context, section 3.2.2), or None if it is not valid."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanIds(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def format_traceparent(ids: SpanIds) -> str:
    """Returns the ids as a `traceparent`."""
    return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.is_sampled):02x}"


def outgoing_metadata() -> tuple[tuple[str, str], ...] | None:
    """Returns the metadata of a gRPC call that is part of the current trace, or None outside of a trace."""
    trace = CURRENT.get()
    return None if trace is None else ((TRACEPARENT, trace.traceparent),)


def add_trace_ids(
    logger: object,
    method: str,
    event: MutableMapping[str, Any],  # structlog's type of an event
) -> MutableMapping[str, Any]:
    """Adds the ids of the current trace to a log event (a processor for structlog)."""
    trace = CURRENT.get()
    if trace is not None:
        ids = trace.ids
        event["trace_id"], event["span_id"] = f"{ids.trace_id:032x}", f"{ids.span_id:016x}"
    return event
