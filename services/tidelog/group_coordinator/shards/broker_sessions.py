"""The coordinator's sessions: one to each broker that is alive, begun again when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from tidelog.group_coordinator.shards.shard import Cancellable
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc.coordinator_session import Hello, Item, SessionConnector, SessionLine, Welcome

FIRST_RETRY_MS: Final = 50
MAX_RETRY_MS: Final = 1_000

_log = structlog.get_logger(__name__)


class SessionOutlets(Protocol):
    def items_received(self, session: BrokerSession, items: Sequence[Item]) -> None: ...

    def session_began(self, session: BrokerSession) -> None: ...

    def session_ended(self, session: BrokerSession) -> None: ...

    def call_after(self, callback: Callable[[], None], delay_ms: int) -> Cancellable: ...


class BrokerSession:
    """A SessionEnd. What is sent over `line` waits until the connection is there."""

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


class BrokerSessions:
    def __init__(self, connector: SessionConnector, coordinator_id: int, outlets: SessionOutlets) -> None:
        self._connector = connector
        self._coordinator_id = coordinator_id
        self._outlets = outlets
        self._brokers: dict[int, BrokerRegistration] = {}
        self._sessions: dict[int, BrokerSession] = {}
        self._failures: dict[int, int] = {}
        self._retries: dict[int, Cancellable] = {}
        self._turn = 0

    def __iter__(self) -> Iterator[BrokerSession]:
        return iter(list(self._sessions.values()))

    def get(self, broker_id: int) -> BrokerSession | None:
        return self._sessions.get(broker_id)

    def any(self) -> BrokerSession | None:
        """Another one each time, if there are some."""
        sessions = list(self._sessions.values())
        self._turn += 1
        return sessions[self._turn % len(sessions)] if sessions else None

    def brokers_changed(self, brokers: Iterable[BrokerRegistration]) -> None:
        """Those that are alive now. A broker with another epoch is another life: another session."""
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
        self._outlets.items_received(session, items)

    def ended(self, session: BrokerSession) -> None:
        """By the other side, or the line between."""
        if session.is_over:
            return
        session.is_over = True
        broker_id = session.broker.broker_id
        self._sessions.pop(broker_id, None)
        failures = self._failures[broker_id] = self._failures.get(broker_id, 0) + 1
        if failures == 1:
            _log.info("the session with a broker ended", broker_id=broker_id)
        self._outlets.session_ended(session)
        if broker_id in self._brokers and broker_id not in self._retries:
            delay_ms = min(FIRST_RETRY_MS << min(failures, 10), MAX_RETRY_MS)
            self._retries[broker_id] = self._outlets.call_after(lambda: self._connect(broker_id), delay_ms)

    def _end(self, session: BrokerSession) -> None:
        session.is_over = True
        self._sessions.pop(session.broker.broker_id, None)
        session.line.close()
        self._outlets.session_ended(session)

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
        self._outlets.session_began(session)
