"""The sessions of a coordinator with brokers, and the turns of the items that they deliver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.group_coordinator.shards.store_copies import ClusterView
from tidelog.kernel.instants import Backoff
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.coordinator_shards import ShardId, ShardKind
from tidelog.model.errors import ErrorCode
from tidelog.model.fair_budget import BROKERS, client_key
from tidelog.model.topics import TopicPartition
from tidelog.model.trace_context import CallTracing, part_of
from tidelog.rpc.coordinator_session import (
    AnswerRequest,
    ForwardedToShard,
    Hello,
    Item,
    SessionConnector,
    SessionLine,
    Welcome,
)
from tidelog.wire.api_keys import ApiKey

BACKOFF: Final = Backoff(100, 1_000)
_FIRST_VERSION_OF_BROKERS: Final = 4
"""The version of AddPartitionsToTxn from which brokers send it (KIP-890)."""

_log = structlog.get_logger(__name__)


class BrokerSession:
    """The coordinator's end of one session. `line` keeps the items that are sent before it is connected."""

    __slots__ = ("_sessions", "broker", "is_over", "line")

    line: SessionLine

    def __init__(self, sessions: BrokerSessions, broker: BrokerRegistration) -> None:
        self._sessions = sessions
        self.broker = broker
        self.is_over = False

    def received(self, items: Sequence[Item]) -> None:
        if not self.is_over:
            self._sessions.received(self, items)

    def closed(self) -> None:
        self._sessions.ended(self)


class SessionListener(Protocol):
    def items_received(self, session: BrokerSession, items: Sequence[Item]) -> None: ...

    def session_began(self, session: BrokerSession) -> None: ...

    def session_ended(self, session: BrokerSession) -> None: ...


class BrokerSessions:
    """The sessions with all live brokers. A session that ends is opened again."""

    _listener: SessionListener

    def __init__(
        self, connector: SessionConnector, coordinator_id: int, view: ClusterView, timer: DelayTimer
    ) -> None:
        self._connector = connector
        self._coordinator_id = coordinator_id
        self._view = view
        self._timer = timer
        self._brokers: dict[int, BrokerRegistration] = {}
        self._sessions: dict[int, BrokerSession] = {}
        self._failures: dict[int, int] = {}
        self._retries: dict[int, Cancellable] = {}
        self._next_line = 0

    def start(self, listener: SessionListener) -> None:
        self._listener = listener

    def __iter__(self) -> Iterator[BrokerSession]:
        return iter(list(self._sessions.values()))

    def get(self, broker_id: int) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def line_to_leader(self, partition: TopicPartition) -> tuple[int, SessionLine] | None:
        """Returns the id of the partition's leader and the line to it, or None if one of them is missing."""
        leader = self._view.leader(partition)
        session = None if leader is None else self._sessions.get(leader.broker_id)
        return None if session is None else (session.broker.broker_id, session.line)

    def any_line(self) -> tuple[int, SessionLine] | None:
        """Returns the id of a broker and the line to it, another broker at each call."""
        sessions = list(self._sessions.values())
        if not sessions:
            return None
        self._next_line += 1
        session = sessions[self._next_line % len(sessions)]
        return session.broker.broker_id, session.line

    def brokers_changed(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Opens and closes sessions to match the live brokers.

        A broker with another epoch has restarted, so it gets a new session.
        """
        self._brokers = {broker.broker_id: broker for broker in brokers}
        for broker_id, session in list(self._sessions.items()):
            now = self._brokers.get(broker_id)
            if now is None or now.broker_epoch != session.broker.broker_epoch:
                self._end(session)
        for broker_id in self._brokers:
            if broker_id not in self._sessions:
                self._connect(broker_id)

    def close(self) -> None:
        self._brokers = {}
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        for session in list(self._sessions.values()):
            self._end(session)

    def received(self, session: BrokerSession, items: Sequence[Item]) -> None:
        if isinstance(items[0], Welcome):
            self._failures.pop(session.broker.broker_id, None)
        self._listener.items_received(session, items)

    def ended(self, session: BrokerSession) -> None:
        """Handles the end of a session by the broker or by a failure of the connection."""
        if session.is_over:
            return
        session.is_over = True
        broker_id = session.broker.broker_id
        self._sessions.pop(broker_id, None)
        failures = self._failures[broker_id] = self._failures.get(broker_id, 0) + 1
        if failures == 1:
            _log.info("the session with a broker ended", broker_id=broker_id)
        self._listener.session_ended(session)
        if broker_id in self._brokers and broker_id not in self._retries:
            delay_ms = BACKOFF.delay_ms(failures)
            self._retries[broker_id] = self._timer.add_after(lambda: self._connect(broker_id), delay_ms)

    def _end(self, session: BrokerSession) -> None:
        session.is_over = True
        self._sessions.pop(session.broker.broker_id, None)
        session.line.close()
        self._listener.session_ended(session)

    def _connect(self, broker_id: int) -> None:
        retry = self._retries.pop(broker_id, None)
        if retry is not None:
            retry.cancel()
        broker = self._brokers.get(broker_id)
        if broker is None or broker_id in self._sessions:
            return
        session = self._sessions[broker_id] = BrokerSession(self, broker)
        session.line = self._connector.connect(broker, session)
        session.line.send(Hello(self._coordinator_id))
        self._listener.session_began(session)


class DeliveredItem(NamedTuple):
    """An item of a session. `arrival` numbers all items of a coordinator."""

    session: BrokerSession
    item: Item
    arrival: int


class WaitingItems:
    """The items that sessions have delivered and that the coordinator has not processed yet.

    What brokers tell comes first, in the order of its arrival: it answers the coordinator's questions, and is
    little. The calls follow, in turns by client: one of each client that waits, and one of the brokers after
    each of them. The calls of one client keep their order. A client with thousands of calls therefore makes
    another one wait for one of them only.

    Only brokers add items, and they bound what clients can add: each broker has requests of at most
    MAX_CALL_BYTES (64 MiB) at a coordinator that are not answered, and refuses others with
    COORDINATOR_LOAD_IN_PROGRESS (`broker/coordination/coordination.py`). A broker sends records for loading
    shards only while those that are not taken have less than MAX_UNTAKEN_BYTES. All other items are answers.
    """

    def __init__(self) -> None:
        self._told: deque[DeliveredItem] = deque()
        self._calls: dict[str, deque[DeliveredItem]] = {}
        """The calls by client. The client whose turn is next comes first."""
        self._is_turn_of_brokers = True
        self._arrivals = 0
        self._changes: dict[ShardId, int] = {}
        """The arrival of the last change of each shard's attachment."""

    def __bool__(self) -> bool:
        return bool(self._told or self._calls)

    def add_told(self, session: BrokerSession, item: Item, changed: ShardId | None = None) -> None:
        """Adds an item that is no call. `changed` is the shard whose attachment it begins or ends."""
        self._arrivals += 1
        if changed is not None:
            self._changes[changed] = self._arrivals
        self._told.append(DeliveredItem(session, item, self._arrivals))

    def add_call(self, session: BrokerSession, item: ForwardedToShard) -> None:
        self._arrivals += 1
        client = client_key(item.principal, item.host)
        self._calls.setdefault(client, deque()).append(DeliveredItem(session, item, self._arrivals))

    def take(self) -> DeliveredItem:
        """Removes and returns the next item. There must be one."""
        if self._told:
            return self._told.popleft()
        is_of_brokers = self._is_turn_of_brokers and BROKERS in self._calls
        client = BROKERS if is_of_brokers else next(iter(self._calls))
        self._is_turn_of_brokers = client != BROKERS
        calls = self._calls.pop(client)
        delivered = calls.popleft()
        if calls:
            self._calls[client] = calls
        return delivered

    def is_outdated(self, call: ForwardedToShard, arrival: int) -> bool:
        """Returns whether the attachment of the call's shard has changed since the call arrived: its broker
        has refused it then.
        """
        return arrival < self._changes.get(call.shard, 0)


def refuse(session: BrokerSession, call: ForwardedToShard) -> None:
    """Answers a call with an error after which the client tries again."""
    session.line.send(AnswerRequest(call.request_id, None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


def is_of_a_broker(item: ForwardedToShard) -> bool:
    """Returns whether a broker, not a client, sent the request: an AddPartitionsToTxn (KIP-890), or any
    request about the states of share partitions.
    """
    if item.shard.kind is ShardKind.SHARE:
        return True
    return item.api_key == ApiKey.ADD_PARTITIONS_TO_TXN and item.api_version >= _FIRST_VERSION_OF_BROKERS


class RequestTracing:
    """The traces of the coordinator's part of requests that a broker traces."""

    def __init__(self, tracing: CallTracing) -> None:
        self._tracing = tracing

    def traced(self, item: ForwardedToShard, decide: Callable[[], None]) -> None:
        """Runs `decide` within a span of the broker's trace.

        The span ends with the decision. The broker's own span covers the replication that follows.
        """
        shard = item.shard
        attributes: dict[str, str | int | float | bool] = {
            "messaging.system": "kafka",
            "messaging.operation.name": ApiKey(item.api_key).name_in_kafka,
            "messaging.message.body.size": len(item.body),
            "tidelog.shard.kind": shard.kind.value,
            "tidelog.shard": shard.partition,
        }
        if item.client_id is not None:
            attributes["messaging.client.id"] = item.client_id
        name = f"coordinator {ApiKey(item.api_key).name_in_kafka}"
        trace = self._tracing.go_on(item.traceparent, name, attributes)
        if trace is None:
            decide()
            return
        try:
            with part_of(trace):
                decide()
        finally:
            trace.end()
