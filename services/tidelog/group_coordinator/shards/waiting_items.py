"""The items that sessions have delivered to a coordinator and that it has not processed yet.

What brokers tell comes first, in the order of its arrival: it answers the coordinator's questions, and is
little. The calls follow, in turns by client: one of each client that waits, and one of the brokers after each
of them. The calls of one client keep their order. A client with thousands of calls therefore makes another
one wait for one of them only.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from tidelog.model.coordinator_shards import ShardId
from tidelog.model.fair_budget import BROKERS, client_key
from tidelog.rpc.coordinator_session import ForwardedToShard, Item

SessionT = TypeVar("SessionT")


class TakenItem(NamedTuple, Generic[SessionT]):
    """An item that is to be processed. A call is outdated if the attachment of its shard has changed since it
    arrived: its broker has refused it then.
    """

    session: SessionT
    item: Item
    is_outdated: bool = False


class _Call(NamedTuple, Generic[SessionT]):
    session: SessionT
    item: ForwardedToShard
    arrival: int


class WaitingItems(Generic[SessionT]):
    """The items of all sessions.

    Only brokers add items, and they bound what clients can add: each broker has requests of at most
    MAX_CALL_BYTES (64 MiB) at a coordinator that are not answered, and refuses others with
    COORDINATOR_LOAD_IN_PROGRESS (`broker/coordination/coordination.py`). A broker sends records for loading
    shards only while those that are not taken have less than MAX_UNTAKEN_BYTES. All other items are answers.
    """

    def __init__(self) -> None:
        self._told: deque[TakenItem[SessionT]] = deque()
        self._calls: dict[str, deque[_Call[SessionT]]] = {}
        """The calls by client. The client whose turn is next comes first."""
        self._is_turn_of_brokers = True
        self._arrivals = 0
        self._changes: dict[ShardId, int] = {}
        """The arrival of the last change of each shard's attachment."""

    def __bool__(self) -> bool:
        return bool(self._told or self._calls)

    def add_told(self, session: SessionT, item: Item, changed: ShardId | None = None) -> None:
        """Adds an item that is no call. `changed` is the shard whose attachment it begins or ends."""
        self._arrivals += 1
        if changed is not None:
            self._changes[changed] = self._arrivals
        self._told.append(TakenItem(session, item))

    def add_call(self, session: SessionT, item: ForwardedToShard) -> None:
        self._arrivals += 1
        client = client_key(item.principal, item.host)
        self._calls.setdefault(client, deque()).append(_Call(session, item, self._arrivals))

    def take(self) -> TakenItem[SessionT]:
        """Removes and returns the next item. There must be one."""
        if self._told:
            return self._told.popleft()
        is_of_brokers = self._is_turn_of_brokers and BROKERS in self._calls
        client = BROKERS if is_of_brokers else next(iter(self._calls))
        self._is_turn_of_brokers = client != BROKERS
        calls = self._calls.pop(client)
        session, item, arrival = calls.popleft()
        if calls:
            self._calls[client] = calls
        return TakenItem(session, item, arrival < self._changes.get(item.shard, 0))
