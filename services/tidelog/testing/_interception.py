"""The interception of clients' requests, which applies the faults that a test has ordered.

An `_Interceptor` stands between the connections of one broker and its dispatcher. It exists only in clusters
of `tidelog.testing`; the listeners of other brokers call their dispatcher directly. Faults do not touch the
cluster's own listener, over which brokers replicate and over which the test makes its own requests. Only a
pause holds back all requests.

The module is private because it handles connections of the broker, whose types pyright does not know all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from tidelog.broker.net.connection import ClosedByProtocolError, Connection, Dispatch
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.request import NO_REPLY, Handling, RequestContext, Route
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import FINAL_EPOCH, INITIAL_EPOCH
from tidelog.testing.error_responses import error_response
from tidelog.testing.faults import Fault
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import MalformedMessageError, request_decoder
from tidelog.wire.headers import decode_request_header
from tidelog.wire.messages.fetch import FetchRequest
from tidelog.wire.messages.metadata import MetadataResponseBroker

INTERNAL_LISTENER: Final = "INTERNAL"
MAX_HELD_REQUESTS: Final = 1_000
"""The requests that one paused broker keeps. A connection has at most one."""

_NOT_HANDLED: Final = Handling(lambda message, context: NO_REPLY)
"""The route of a request that fails has a decoder and an encoder, but its handler is not called."""


def _is_served(api_key: ApiKey, version: int) -> bool:
    served = APIS[api_key]
    return served.min_version <= version <= served.max_version


class FetchedOffsets:
    """The offsets for which one connection asks in its fetch session. A request of a session names only those
    that changed (KIP-227).
    """

    def __init__(self) -> None:
        self._offsets: dict[tuple[str | UUID, int], int] = {}

    def take(self, request: FetchRequest) -> None:
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._offsets.clear()
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                self._offsets.pop((gone.topic or gone.topic_id, index), None)
        for topic in request.topics:
            for part in topic.partitions:
                self._offsets[topic.topic or topic.topic_id, part.partition] = part.fetch_offset

    def offset(self, topic: str, topic_id: UUID, partition: int) -> int | None:
        found = self._offsets.get((topic, partition))
        return self._offsets.get((topic_id, partition)) if found is None else found


class FetchWatch:
    """Waits until clients ask for the record at, or after, the end of each partition of a topic. `done` is
    set then.
    """

    def __init__(
        self, topic: str, topic_id: UUID, ends: Mapping[int, int], done: asyncio.Future[None]
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._left = dict(ends)
        self._done = done

    @property
    def left(self) -> tuple[int, ...]:
        """The partitions whose records have not been fetched yet."""
        return tuple(sorted(self._left))

    def saw(self, fetched: FetchedOffsets) -> bool:
        """Notes the offsets that a client fetches. Returns whether the wait for them is over."""
        for partition, end in list(self._left.items()):
            offset = fetched.offset(self._topic, self._topic_id, partition)
            if offset is not None and offset >= end:
                del self._left[partition]
        if not self._left and not self._done.done():
            self._done.set_result(None)
        return self._done.done()


class Faults:
    """The faults of one cluster. Tests add them from their own thread."""

    def __init__(self) -> None:
        self.in_force: tuple[Fault, ...] = ()
        self.paused: frozenset[int] = frozenset()
        """The ids of the brokers that hold back all requests."""
        self.brokers: tuple[MetadataResponseBroker, ...] = ()
        """The running brokers, for responses to Metadata."""
        self.watches: tuple[FetchWatch, ...] = ()
        self._held: dict[int, list[tuple[Connection, Callable[[], None]]]] = {}
        self._clients: dict[Connection, str | None] = {}
        self._fetched: dict[Connection, FetchedOffsets] = {}

    def add(self, fault: Fault) -> Fault:
        self.in_force = (*(each for each in self.in_force if not each.is_over), fault)
        return fault

    # -- called on the event loop

    def watch_fetches(self, watch: FetchWatch) -> None:
        """Adds a watch. A consumer that has all records already may not name their partitions again."""
        self.watches = (*self.watches, watch)
        for connection, fetched in self._fetched.items():
            if not connection.is_closed:
                self._tell_watches(fetched)

    def fetch_arrived(self, connection: Connection, request: FetchRequest) -> None:
        """Tells those that wait for fetches."""
        fetched = self._fetched.get(connection)
        if fetched is None:
            self._fetched = {each: known for each, known in self._fetched.items() if not each.is_closed}
            fetched = self._fetched[connection] = FetchedOffsets()
        fetched.take(request)
        self._tell_watches(fetched)

    def _tell_watches(self, fetched: FetchedOffsets) -> None:
        """Tells those that wait, and forgets those that wait no longer."""
        self.watches = tuple(watch for watch in self.watches if not watch.saw(fetched))

    def intercept(self, broker_id: int, dispatch: Dispatch, telemetry: Telemetry) -> Dispatch:
        """Returns what the listeners of a broker call (`tidelog.broker.server.Intercept`)."""
        return _Interceptor(self, broker_id, dispatch, telemetry)

    def pause(self, broker_id: int) -> None:
        self.paused |= {broker_id}

    def resume(self, broker_id: int) -> None:
        """Starts the requests that a paused broker has held back."""
        self.paused -= {broker_id}
        for _, release in self._held.pop(broker_id, ()):
            release()

    def forget(self, broker_id: int) -> None:
        """Drops the requests of a broker that was killed."""
        self.paused -= {broker_id}
        self._held.pop(broker_id, None)

    def heal(self) -> None:
        """Ends all faults and pauses."""
        for fault in self.in_force:
            fault.end()
        self.in_force = ()
        for broker_id in self.paused:
            self.resume(broker_id)

    def disconnect(self, client_id: str) -> int:
        """Closes the connections of a client. Returns their number."""
        found = [connection for connection, name in self._clients.items() if name == client_id]
        open_ones = [connection for connection in found if not connection.is_closed]
        for connection in open_ones:
            connection.close()
        return len(open_ones)

    def hold(self, broker_id: int, connection: Connection, release: Callable[[], None]) -> None:
        """Keeps a request of a paused broker. Clients that give up and connect again leave requests behind;
        those are dropped, and beyond MAX_HELD_REQUESTS the connection is closed.
        """
        held = [each for each in self._held.get(broker_id, ()) if not each[0].is_closed]
        if len(held) >= MAX_HELD_REQUESTS:
            connection.close()
        else:
            held.append((connection, release))
        self._held[broker_id] = held

    def saw(self, connection: Connection, client_id: str | None) -> None:
        """Remembers the client of a connection. Connections that have ended are forgotten."""
        if connection not in self._clients:
            self._clients = {each: name for each, name in self._clients.items() if not each.is_closed}
        self._clients[connection] = client_id


class _Interceptor:
    """Passes the requests of one broker on, unless a fault hits them."""

    def __init__(self, faults: Faults, broker_id: int, dispatch: Dispatch, telemetry: Telemetry) -> None:
        self._faults = faults
        self._broker_id = broker_id
        self._dispatch = dispatch
        self._telemetry = telemetry

    def __call__(self, connection: Connection, frame: memoryview, /) -> None:
        gate = connection.gate
        if gate is not None and gate.takes_raw_tokens:
            self._dispatch(connection, frame)
            return
        api_key, version, _, client_id, position = decode_request_header(frame, 0)
        faults = self._faults
        is_internal = connection.listener_name == INTERNAL_LISTENER
        if not is_internal and api_key == ApiKey.FETCH and _is_served(ApiKey.FETCH, version):
            faults.fetch_arrived(connection, request_decoder(api_key, version)(bytes(frame), position)[0])
        if self._broker_id in faults.paused:
            faults.hold(self._broker_id, connection, self._held_back(connection, frame))
            return
        if is_internal:
            self._dispatch(connection, frame)
            return
        faults.saw(connection, client_id)
        fault = next((each for each in faults.in_force if each.takes(api_key, client_id)), None)
        if fault is None:
            self._dispatch(connection, frame)
        elif fault.code is not None:
            self._fail(connection, frame, version, fault.code)
        elif fault.is_response_lost:
            self._dispatch(connection, frame)
            connection.close()
        else:
            connection.loop.call_later(fault.delay_s, self._held_back(connection, frame))

    def _held_back(self, connection: Connection, frame: memoryview) -> Callable[[], None]:
        """Returns what starts the request later. Until then the connection starts no other request."""
        copy = memoryview(bytearray(frame))  # the frame is valid only during this call
        connection.start_barrier()

        def release() -> None:
            if connection.is_closed:
                return
            try:
                self._dispatch(connection, copy)
            except (MalformedMessageError, ClosedByProtocolError) as error:
                connection.refuse(str(error))
                return
            connection.flush()
            connection.end_barrier()

        return release

    def _fail(self, connection: Connection, frame: memoryview, version: int, code: ErrorCode) -> None:
        key, _, correlation_id, client_id, position = decode_request_header(frame, 0)
        api_key = ApiKey(key)
        if not _is_served(api_key, version):
            raise ClosedByProtocolError(f"{api_key.name_in_kafka} v{version} is not served")
        route = Route(api_key, version, _NOT_HANDLED, self._telemetry)
        message, _ = route.decode(bytes(frame), position)
        if api_key == ApiKey.PRODUCE and not message.acks:
            raise ClosedByProtocolError("tidelog.testing made a Produce request with acks=0 fail")
        context = RequestContext(connection, route, correlation_id, client_id, connection.last_active)
        answer = error_response(api_key, version, message, code, self._faults.brokers)
        connection.answer_now(context, route.encode_answer(context, answer))
