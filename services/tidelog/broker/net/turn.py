"""The turns of connections: how long each client may work in one, and what is done at its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from tidelog.model.fair_budget import BROKERS

CLIENTS_TURN_S: Final = 0.004
"""The time for which the clients of a listener together start requests in one iteration of the event loop."""
CONNECTION_TURN_S: Final = CLIENTS_TURN_S / 4
"""After this time, a connection starts its next request only when others had their turn. A client may have
sent thousands of small requests at once.
"""
LEAST_SHARE_S: Final = 0.0005
"""A client's least share of CLIENTS_TURN_S, about ten small requests, however many clients are busy."""


class Flushable(Protocol):
    def flush(self) -> None: ...


class Turn:
    """The iterations of the event loop, for the connections of a listener.

    **Shares.** The clients of a listener work for about CLIENTS_TURN_S in an iteration and have equal shares
    of it, whatever the number of their connections. A connection whose client has used its share waits in the
    queue of its client for the next iteration. Brokers on a listener of their own have no shares, because all
    clients wait for replication.

    **The end.** First the calls run, then the flushes. Each Flushable is flushed once, however often it asks.
    A write wakes its client, which on a busy machine takes the processor at once. Therefore the iteration
    serves its requests before it writes the first response. With 16 clients that send one message each, this
    gave a fifth more requests per second. Followers are woken at the same time: one response brings them all
    that was appended in the iteration.
    """

    __slots__ = (
        "_calls",
        "_is_scheduled",
        "_is_service_due",
        "_late",
        "_loop",
        "_may_give_out",
        "_share_s",
        "_shares_end_s",
        "_used_s",
        "_waiting",
        "seconds",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: Callable[[], float] = monotonic) -> None:
        self.seconds = seconds
        """A monotonic clock."""
        self._loop = loop
        self._is_scheduled = False
        self._calls: list[Callable[[], None]] = []
        self._waiting: dict[Flushable, None] = {}
        self._share_s = CLIENTS_TURN_S
        self._shares_end_s = 0.0
        self._used_s: dict[str, float] = {}
        """The time for which each client has worked since the shares were given out."""
        self._late: dict[str, deque[Callable[[], None]]] = {}
        """The connections, by client, that wait for the next iteration."""
        self._is_service_due = False
        self._may_give_out = True
        """Whether an iteration has begun since the shares were given out."""

    def time_left_s(self, client: str, now_s: float) -> float:
        """Returns the rest of the client's share, in seconds. A client is named as in fair budgets."""
        if now_s >= self._shares_end_s and self._may_give_out and not self._late:
            self._give_out(now_s)
        return self._left_s(client)

    def _left_s(self, client: str) -> float:
        if client == BROKERS:
            return CLIENTS_TURN_S
        return self._share_s - self._used_s.get(client, 0.0)

    def spend(self, client: str, time_s: float) -> None:
        """Takes the time for which a connection has worked from its client's share."""
        self._used_s[client] = self._used_s.get(client, 0.0) + time_s

    def wait_for_next(self, client: str, resume: Callable[[], None]) -> None:
        """Calls `resume` in the next iteration in which the client has a share left."""
        queue = self._late.get(client)
        if queue is None:
            queue = self._late[client] = deque()
        queue.append(resume)
        self._serve_late_soon()

    def _serve_late_soon(self) -> None:
        if not self._is_service_due:
            self._is_service_due = True
            self._loop.call_soon(self._serve_late)

    def _give_out(self, now_s: float) -> None:
        """Gives out new shares to as many clients as have just worked."""
        self._share_s = max(LEAST_SHARE_S, CLIENTS_TURN_S / max(1, len(self._used_s)))
        self._shares_end_s = now_s + CLIENTS_TURN_S
        self._used_s.clear()
        self._may_give_out = False
        self._loop.call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._may_give_out = True

    def _serve_late(self) -> None:
        """Resumes the connections that wait, each at most once, until the shares of their clients end."""
        self._is_service_due = False
        self._give_out(self.seconds())
        late, self._late = self._late, {}
        for client, queue in late.items():
            while queue and self._left_s(client) > 0:
                self._run(queue.popleft())
            if queue:  # those that are left come before those that wait again
                queue.extend(self._late.get(client, ()))
                self._late[client] = queue
        if self._late:
            self._serve_late_soon()

    def flush_at_end(self, flushable: Flushable) -> None:
        """Schedules a flush."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end)
        self._waiting[flushable] = None

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Schedules a call before the flushes. Such a call may schedule further ones. An exception goes to
        the event loop's exception handler.
        """
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end)
        self._calls.append(call)

    def _end(self) -> None:
        while self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                self._run(call)
        self._is_scheduled = False
        waiting, self._waiting = self._waiting, {}
        for flushable in waiting:
            self._run(flushable.flush)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a bug in one call must not keep back the other responses
            self._loop.call_exception_handler({"message": "a call of a turn failed", "exception": error})
