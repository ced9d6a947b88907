"""Traces of sampled requests. Only a broker with tracing imports this module; the other code calls the hooks
of `RequestSteps`, and only for a request that is traced.

The steps of a request are spans: `queue` (from the arrival of its bytes to its turn), `append` or `read`, a
wait, and `response` (until the socket has accepted it). Attributes follow OpenTelemetry's semantic
conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tidelog.broker.net.connection import ClosedByProtocolError, Connection
from tidelog.broker.replication.fetch_wire import FollowerRequest
from tidelog.broker.requests.one_batch import OneBatch
from tidelog.broker.requests.request import RequestContext, RequestSteps
from tidelog.model.errors import ErrorCode
from tidelog.model.trace_context import TRACEPARENT, Attributes, part_of
from tidelog.records.batch import CURRENT_MAGIC, BatchHeader, parse_header
from tidelog.records.record import iterate_headers, records_of, scan_records
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.produce import ProduceRequest
from tidelog.wire.schema import Buffer

if TYPE_CHECKING:
    from tidelog.tracing.tracer import RequestTrace, Tracing

SEND_POLL_S: Final = 0.005
MAX_SEND_POLLS: Final = 2_000
MAX_SEARCHED_HEADERS: Final = 64
"""The headers of a record among which a traceparent is searched. A batch of 1 MB can have half a million."""
"""After ten seconds, a trace ends even if the client has not accepted the response."""
_OPERATION_TYPES: Final[Mapping[int, str]] = {
    ApiKey.PRODUCE: "send",
    ApiKey.FETCH: "receive",
    ApiKey.OFFSET_COMMIT: "settle",
}
_WAITS: Final[Mapping[int, str]] = {
    ApiKey.PRODUCE: "replication wait",
    ApiKey.FETCH: "wait for records",
    ApiKey.JOIN_GROUP: "coordinator",
    ApiKey.SYNC_GROUP: "coordinator",
    ApiKey.HEARTBEAT: "coordinator",
    ApiKey.LEAVE_GROUP: "coordinator",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "coordinator",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "coordinator",
    ApiKey.OFFSET_COMMIT: "coordinator",
    ApiKey.OFFSET_FETCH: "coordinator",
    ApiKey.TXN_OFFSET_COMMIT: "coordinator",
    ApiKey.INIT_PRODUCER_ID: "coordinator",
    ApiKey.ADD_PARTITIONS_TO_TXN: "coordinator",
    ApiKey.ADD_OFFSETS_TO_TXN: "coordinator",
    ApiKey.END_TXN: "coordinator",
}


class RequestTracer:
    """Decides which requests are traced."""

    def __init__(self, tracing: Tracing, topic_names: Mapping[UUID, str]) -> None:
        """`topic_names` maps topic ids to names and is read at each use."""
        self._tracing = tracing
        self._is_sampled = tracing.is_sampled
        self._topic_names = topic_names

    def begin(
        self, connection: Connection, context: RequestContext, message: object, size_bytes: int
    ) -> RequestSteps | None:
        """Returns the steps of a request that is traced. Returns None for a request that is not sampled, and
        for every follower's Fetch.
        """
        if not self._is_sampled() or _is_from_follower(message):
            return None
        waited_s = monotonic() - context.started_at
        name = context.route.api_key.name_in_kafka
        attributes = _request_attributes(connection, context, size_bytes)
        trace = self._tracing.begin(name, attributes, waited_s=waited_s)
        if isinstance(message, ProduceRequest | OneBatch):
            trace.note(self._produce_attributes(message))
        return TracedSteps(connection, context, trace)

    def _produce_attributes(self, request: ProduceRequest | OneBatch) -> Attributes:
        found: dict[str, str | int | float | bool] = {"tidelog.acks": request.acks}
        if request.transactional_id is not None:
            found["tidelog.transactional_id"] = request.transactional_id
        names = [topic.name or self._topic_names.get(topic.topic_id, "") for topic in request.topic_data]
        if len(names) == 1 and names[0]:
            found["messaging.destination.name"] = names[0]
        return found


class TracedSteps:
    """The trace of one request. See `RequestSteps` for the methods."""

    __slots__ = ("_connection", "_context", "_polls", "_trace", "traceparent")

    def __init__(self, connection: Connection, context: RequestContext, trace: RequestTrace) -> None:
        self.traceparent = trace.traceparent
        self._connection = connection
        self._context = context
        self._trace = trace
        self._polls = 0

    def handling(self) -> AbstractContextManager[None]:
        return _handling(self._trace)

    def append_began(self, topic: str | None, partition: int, records: Buffer | None) -> None:
        header = None if records is None else _header_of(memoryview(records))
        if header is not None and records is not None:
            traceparent = first_traceparent(memoryview(records), header)
            if traceparent is not None:
                self._trace.link(traceparent)
        self._trace.begin_wait("append", _batch_attributes(topic, partition, header))

    def append_ended(self, error_code: int, base_offset: int) -> None:
        if error_code:
            self._trace.end_wait({"error.type": str(error_code)})
        else:
            self._trace.end_wait({"messaging.kafka.offset": base_offset})

    def read_began(self, topics: Iterable[str]) -> None:
        self._trace.end_wait()
        names = set(topics)
        if len(names) == 1:
            self._trace.note({"messaging.destination.name": names.pop()})
        self._trace.begin_wait("read")

    def read_ended(self, size_bytes: int, partition_count: int) -> None:
        self._trace.end_wait(
            {"messaging.message.body.size": size_bytes, "tidelog.partitions": partition_count}
        )

    def wait_began(self, name: str) -> None:
        self._trace.begin_wait(name)

    def parked(self) -> None:
        if not self._trace.is_waiting:
            self._trace.begin_wait(_WAITS.get(self._context.route.api_key, "handler"))

    def answered(self, message: object) -> None:
        trace = self._trace
        trace.end_wait()
        error = next((code for code in error_codes(message) if code), 0)
        if error:
            trace.fail(_name_of(error))
        trace.begin_wait("response")
        # The response leaves at the end of this iteration of the event loop, or of the next one.
        loop = self._connection.loop
        loop.call_soon(lambda: loop.call_soon(self._end_when_sent))

    def abandoned(self) -> None:
        self._trace.fail("connection closed")
        self._trace.end()

    def ended(self) -> None:
        self._trace.end()

    def _end_when_sent(self) -> None:
        connection = self._connection
        self._polls += 1
        is_unsent = connection.unsent_bytes or connection.is_waiting_for(self._context)
        if is_unsent and not connection.is_closed and self._polls < MAX_SEND_POLLS:
            connection.loop.call_later(SEND_POLL_S, self._end_when_sent)
        else:
            self._trace.end()


@contextmanager
def _handling(trace: RequestTrace) -> Iterator[None]:
    """Makes the code within it a part of the trace. An exception ends the trace."""
    try:
        with part_of(trace):
            yield
    except BaseException as error:
        trace.fail("connection closed" if isinstance(error, ClosedByProtocolError) else repr(error))
        trace.end()
        raise


def _is_from_follower(message: object) -> bool:
    if isinstance(message, FollowerRequest):
        return True
    if not isinstance(message, FetchRequest):
        return False
    state = message.replica_state
    return (message.replica_id if state is None else state.replica_id) >= 0


def _request_attributes(connection: Connection, context: RequestContext, size_bytes: int) -> Attributes:
    route = context.route
    found: dict[str, str | int | float | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": route.api_key.name_in_kafka,
        "messaging.message.envelope.size": size_bytes,
        "network.peer.address": connection.peer_host,
        "network.peer.port": connection.peer_port,
        "server.port": connection.listener.port,
        "tidelog.listener": connection.listener.name,
        "tidelog.api_version": route.version,
    }
    if context.client_id is not None:
        found["messaging.client.id"] = context.client_id
    operation_type = _OPERATION_TYPES.get(route.api_key)
    if operation_type is not None:
        found["messaging.operation.type"] = operation_type
    return found


def _batch_attributes(topic: str | None, partition: int, header: BatchHeader | None) -> Attributes:
    found: dict[str, str | int | float | bool] = {"messaging.destination.partition.id": str(partition)}
    if topic is not None:
        found["messaging.destination.name"] = topic
    if header is not None:
        found["messaging.batch.message_count"] = header.record_count
        found["messaging.message.body.size"] = header.size_bytes
    return found


def _header_of(records: memoryview) -> BatchHeader | None:
    try:
        header = parse_header(records)
    except ValueError:  # the append rejects the batch with Kafka's error
        return None
    return header if header.magic == CURRENT_MAGIC else None


def first_traceparent(records: memoryview, header: BatchHeader) -> str | None:
    """Returns the traceparent of the first record of an uncompressed batch: the trace in which it was
    made.
    """
    if header.compression or header.record_count < 1:
        return None
    try:
        body = records_of(records, header)
        for span in islice(scan_records(body, header.record_count), 1):
            headers = iterate_headers(body, span.headers_start, span.end)
            for name, value in islice(headers, MAX_SEARCHED_HEADERS):
                if name == TRACEPARENT and value is not None:
                    return value.decode("ascii", errors="replace")
    except ValueError:  # the records are malformed; nothing has validated them yet
        return None
    return None


def error_codes(message: object) -> Iterator[int]:
    """Yields the error codes of any API's response and of its partitions."""
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
