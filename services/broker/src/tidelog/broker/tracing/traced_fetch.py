"""A client's Fetch that is traced: what it reads, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.fetch_sessions import NO_SESSION, FetchPlan
from tidelog.broker.handlers.fetch import Fetch, Reads, answer_or_park
from tidelog.broker.replication.fetch_wire import FollowerRequest
from tidelog.broker.tracing.traced_request import TracedRequest
from tidelog.model.errors import KafkaError
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def handle(broker: Broker, request: FetchRequest, context: RequestContext) -> object:
    """As `fetch.handle`, which is not to pay for being asked for another Fetch."""
    try:
        plan = broker.fetch_sessions.plan(request, context.api_version, broker.clock.now_ms())
    except KafkaError as error:
        return FetchResponse(error_code=error.code, session_id=NO_SESSION)
    return answer_or_park(TracedFetch(broker, request, context, plan))


def is_of_a_follower(request: FetchRequest | FollowerRequest) -> bool:
    if isinstance(request, FollowerRequest):
        return True
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


class TracedFetch(Fetch):
    __slots__ = ("_is_looking",)

    def __init__(
        self, broker: Broker, request: FetchRequest, context: RequestContext, plan: FetchPlan
    ) -> None:
        super().__init__(broker, request, context, plan)
        self._is_looking = False
        topics = {key.topic for key in self.watched_keys()}
        if len(topics) == 1:
            self.traced.trace.note({"messaging.destination.name": topics.pop()})

    @property
    def traced(self) -> TracedRequest:
        assert isinstance(self.context, TracedRequest)
        return self.context

    def has_enough(self) -> bool:
        self._is_looking = True
        try:
            return super().has_enough()
        finally:
            self._is_looking = False

    def read(self) -> Reads:
        if self._is_looking:  # whether it is time to answer: no step of its own
            return super().read()
        trace = self.traced.trace
        trace.end_wait()
        with trace.step("read") as span:
            reads = super().read()
            span.set_attribute("messaging.message.body.size", reads.bytes)
            span.set_attribute("tidelog.partitions", len(reads.partitions))
        return reads
