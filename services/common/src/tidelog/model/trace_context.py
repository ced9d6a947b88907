"""The trace that the work at hand belongs to, if any: what logs name, what calls to other services carry.

Nothing here needs OpenTelemetry; `runtime/tracing.py` does, which is imported where tracing is on. W3C Trace
Context's `traceparent` is how a trace gets from one process to the next.
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
    """Of a span, in this process or another."""

    trace_id: int
    span_id: int
    is_sampled: bool


class Trace(Protocol):
    """A trace that this process takes part in."""

    @property
    def traceparent(self) -> str:
        """What those that are called are told."""
        ...

    @property
    def ids(self) -> SpanIds: ...

    def step(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[Any]:
        """A part of the work, done within it. What it raises is noted and goes on."""
        ...


class CallTrace(Trace, Protocol):
    """That of a call from another service of ours."""

    def fail(self, error: str) -> None: ...

    def end(self) -> None: ...


class CallTracing(Protocol):
    """Takes up traces that other services of ours have begun."""

    def go_on(self, traceparent: str, name: str, attributes: Attributes) -> CallTrace | None:
        """None if `traceparent` isn't one, or its trace isn't sampled."""
        ...


CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextmanager
def part_of(trace: Trace) -> Iterator[None]:
    """What is done within it belongs to `trace`."""
    token = CURRENT.set(trace)
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def traced_step(name: str, attributes: Attributes | None = None) -> Iterator[None]:
    """A step of the current trace, if there is one."""
    trace = CURRENT.get()
    if trace is None:
        yield
    else:
        with trace.step(name, attributes):
            yield


def parse_traceparent(text: str) -> SpanIds | None:
    """None for what isn't one (W3C Trace Context, 3.2.2)."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanIds(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def format_traceparent(ids: SpanIds) -> str:
    return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{int(ids.is_sampled):02x}"


def outgoing_metadata() -> tuple[tuple[str, str], ...] | None:
    """What a gRPC call carries; None outside of a trace."""
    trace = CURRENT.get()
    return None if trace is None else ((TRACEPARENT, trace.traceparent),)


def add_trace_ids(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog's processor: a line written while a trace is worked on names it."""
    trace = CURRENT.get()
    if trace is not None:
        ids = trace.ids
        event["trace_id"], event["span_id"] = f"{ids.trace_id:032x}", f"{ids.span_id:016x}"
    return event
