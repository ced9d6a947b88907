"""The rates at which connections are served: of the broker and of single addresses (KIP-612)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class ConnectionRate:
    """Limits connections to a number per second, with bursts of one second's worth."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0.0  # when the latest connection would have come at an even rate

    def delay_s(self, rate: float, now: float) -> float:
        """Returns how many seconds one more connection would have to wait."""
        return max(self._after_one_more(rate, now) - now, 0.0)

    def count(self, rate: float, now: float) -> None:
        """Counts a connection."""
        self._next = self._after_one_more(rate, now)

    def is_idle(self, now: float) -> bool:
        """Returns whether the full burst is available."""
        return self._next <= now - 1

    def _after_one_more(self, rate: float, now: float) -> float:
        return max(self._next, now - 1) + 1 / rate


class WaitingConnections(Generic[C]):
    """The connections above `max.connection.creation.rate`, which wait until they are served.

    Addresses take turns. An address that opens connections faster than the rate therefore delays another
    one by one turn for each connection of that other one. A connection that the broker closes while it waits
    takes no turn. That a client has closed one is noticed only in its turn, because nothing is read before.
    """

    def __init__(self) -> None:
        self._rate = ConnectionRate()
        self._by_host: OrderedDict[str, OrderedDict[C, None]] = OrderedDict()

    def admit(self, connection: C, host: str, rate: float, now: float) -> bool:
        """Returns whether the connection is served at once. Otherwise it waits for `take_due`."""
        if not self._by_host and not self._rate.delay_s(rate, now):
            self._rate.count(rate, now)
            return True
        self._by_host.setdefault(host, OrderedDict())[connection] = None
        return False

    def forget(self, connection: C, host: str) -> None:
        """Forgets a connection that ended, if it waits."""
        waiting = self._by_host.get(host)
        if waiting is not None and connection in waiting:
            del waiting[connection]
            if not waiting:
                del self._by_host[host]

    def take_due(self, rate: float, now: float) -> list[C]:
        """Returns the connections whose turn has come. They wait no longer."""
        due: list[C] = []
        while self._by_host and not self._rate.delay_s(rate, now):
            self._rate.count(rate, now)
            host, waiting = self._by_host.popitem(last=False)
            due.append(waiting.popitem(last=False)[0])
            if waiting:
                self._by_host[host] = waiting
        return due

    def next_turn_s(self, rate: float, now: float) -> float | None:
        """Returns the seconds until the next turn, or None if no connection waits."""
        return self._rate.delay_s(rate, now) if self._by_host else None
