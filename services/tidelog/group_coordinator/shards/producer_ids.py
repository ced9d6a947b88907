"""Producer ids for transactional producers, from blocks that a broker obtains from the controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.group_coordinator.shards.shard import Cancellable, DelayTimer
from tidelog.rpc.coordinator_session import AskProducerIds, ProducerIdsTold, SessionLine

ASK_AGAIN_MS: Final = 200
MAX_WAIT_MS: Final = 4_000
"""The time after which a waiting request is refused. The producer then sends the request again."""
PREFETCH_BELOW: Final = 100
"""The number of remaining ids at which the next block is requested."""

Taken = Callable[[int | None], None]


AnyLine = Callable[[], tuple[int, SessionLine] | None]
"""Returns a broker's id and the session with it, another broker each time. None if there is no session."""


class ProducerIds:
    """The ids that this coordinator may assign. The next block is requested before the last id is used."""

    def __init__(self, any_line: AnyLine, timer: DelayTimer) -> None:
        self._any_line = any_line
        self._timer = timer
        self._next = 0
        self._end = 0
        self._following: tuple[int, int] | None = None
        self._waiting: deque[tuple[Taken, Cancellable]] = deque()
        self._call_id = 0
        self._asked_broker: int | None = None
        self._ask_again: Cancellable | None = None

    def take(self, taken: Taken) -> None:
        """Calls `taken` with the next id, at once or later, or with None after MAX_WAIT_MS without an id."""
        if self._end - self._next <= PREFETCH_BELOW and self._following is None:
            self._ask()
        if self._next < self._end or self._roll():
            self._next += 1
            taken(self._next - 1)
            return
        overdue = self._timer.add_after(self._give_up_first, MAX_WAIT_MS)
        self._waiting.append((taken, overdue))

    def received(self, item: ProducerIdsTold) -> None:
        """Adds the block of a broker's answer. A block without ids means that none is available now."""
        if item.call_id != self._call_id or self._asked_broker is None:
            return
        self._asked_broker = None
        if item.count <= 0:
            self._ask_later()
            return
        self._following = (item.first, item.first + item.count)
        while self._waiting and (self._next < self._end or self._roll()):
            taken, overdue = self._waiting.popleft()
            overdue.cancel()
            self._next += 1
            taken(self._next - 1)
        if self._waiting:
            self._ask()

    def session_ended(self, broker_id: int) -> None:
        if self._asked_broker == broker_id:
            self._asked_broker = None
            self._ask_later()

    def _roll(self) -> bool:
        if self._following is None:
            return False
        (self._next, self._end), self._following = self._following, None
        return True

    def _ask(self) -> None:
        if self._asked_broker is not None or self._ask_again is not None:
            return
        found = self._any_line()
        if found is None:
            self._ask_later()
            return
        self._asked_broker, line = found
        self._call_id += 1
        line.send(AskProducerIds(self._call_id))

    def _ask_later(self) -> None:
        if self._ask_again is None and self._waiting:
            self._ask_again = self._timer.add_after(self._ask_now, ASK_AGAIN_MS)

    def _ask_now(self) -> None:
        self._ask_again = None
        if self._waiting:
            self._ask()

    def _give_up_first(self) -> None:
        if self._waiting:
            self._waiting.popleft()[0](None)
