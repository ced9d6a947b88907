"""Messages between processes, which may be late, lost, duplicated, reordered, or cut off in one or both
directions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sim.loop import PROCESS, SimLoop, SimProcess
from sim.trace import Trace

MEAN_DELAY_S: Final = 0.002
SLOW_SHARE: Final = 0.01
SLOW_DELAY_S: Final = 1.0
"""The delay of one message in a hundred, which all other messages overtake."""
REFUSED_AFTER_S: Final = 0.001
ORDER_GAP_S: Final = 1e-6

Serve = Callable[[SimProcess], Awaitable[Any]]


class Network:
    """Processes by name. A restarted process keeps its name's address."""

    def __init__(self, loop: SimLoop, trace: Trace, chance: random.Random) -> None:
        self.processes: dict[str, SimProcess] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.loss_share = 0.0
        self.duplicate_share = 0.0
        self.delay_factor = 1.0
        self.messages = 0
        self._loop = loop
        self._trace = trace
        self._chance = chance
        self._last_arrival: dict[tuple[SimProcess, str, object], float] = {}

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.blocked

    def some_seconds(self, at_most_s: float) -> float:
        return self._chance.random() * at_most_s

    def send(
        self,
        source: SimProcess,
        target: str,
        arrive: Callable[[SimProcess], None],
        what: str,
        *,
        stream: object = None,
        repeatable: bool = True,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """Sends a message. `arrive(process)` runs in the process that has the name `target` when the message
        arrives, after all earlier messages of `source` on the same `stream`. If it cannot arrive, `on_lost`
        is called outside of any process.
        """
        chance = self._chance
        copies = 2 if repeatable and chance.random() < self.duplicate_share else 1
        for _ in range(copies):
            if self.is_cut(source.name, target) or chance.random() < self.loss_share:
                self._lost(source.name, target, what, on_lost)
                continue
            arrival = self._loop.now + self._delay()
            if stream is not None:
                key = (source, target, stream)
                arrival = max(arrival, self._last_arrival.get(key, 0.0) + ORDER_GAP_S)
                self._last_arrival[key] = arrival
            self._loop.call_outside(
                arrival - self._loop.now, self._deliver, source.name, target, arrive, what, on_lost
            )

    def _delay(self) -> float:
        chance = self._chance
        delay = chance.expovariate(1 / MEAN_DELAY_S) * self.delay_factor
        if chance.random() < SLOW_SHARE:
            delay += chance.random() * SLOW_DELAY_S
        return delay

    def _lost(self, source: str, target: str, what: str, on_lost: Callable[[], None] | None) -> None:
        self._trace.add(self._loop.now, "lost", source, target, what)
        if on_lost is not None:
            on_lost()

    def _deliver(
        self,
        source: str,
        target: str,
        arrive: Callable[[SimProcess], None],
        what: str,
        on_lost: Callable[[], None] | None,
    ) -> None:
        process = self.processes.get(target)
        if process is None or not process.is_alive or self.is_cut(source, target):
            self._lost(source, target, what, on_lost)
            return
        self.messages += 1
        self._trace.add(self._loop.now, "message", source, target, what)
        self._loop.call_soon(arrive, process, context=process.context)

    async def call(
        self,
        target: str,
        serve: Serve,
        what: str,
        *,
        timeout_s: float,
        stream: object = None,
        repeatable: bool = True,
    ) -> Any:
        """Asks `target` and waits for its answer, within a process. Raises the errors of `serve`, and
        ConnectionError if it is unknown whether the request was served.
        """
        source = PROCESS.get()
        assert source is not None, "only processes call"
        loop = self._loop
        answered: asyncio.Future[Any] = loop.create_future()

        def arrive(process: SimProcess) -> None:
            process.spawn(run(process))

        async def run(process: SimProcess) -> None:
            try:
                outcome, error = await serve(process), None
            except Exception as raised:  # noqa: BLE001 - travels to the caller
                outcome, error = None, raised
            self.send(process, source.name, lambda caller: back(caller, outcome, error), what + " answered")

        def back(caller: SimProcess, outcome: Any, error: Exception | None) -> None:
            if caller is not source or answered.done():
                return  # another life, or too late
            if error is None:
                answered.set_result(outcome)
            else:
                answered.set_exception(error)

        receiver = self.processes.get(target)
        if receiver is None or not receiver.is_alive:
            await asyncio.sleep(REFUSED_AFTER_S)
            raise ConnectionError(f"{target} is not there")
        self.send(source, target, arrive, what, stream=stream, repeatable=repeatable)
        try:
            return await asyncio.wait_for(answered, timeout_s)
        except TimeoutError as error:
            raise ConnectionError(f"{target} gave no answer") from error
