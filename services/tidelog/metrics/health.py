"""Whether a process lives, and whether it is ready to be used: what Kubernetes' probes ask.

Alive is a process whose event loop turns, whatever it does meanwhile: recovering logs, waiting for etcd. One
whose loop stands still for LIVENESS_STALL_MS is to be killed. Ready is what the service itself says; the
question is put to it on its own loop, so it may look at all it has.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

TICK_MS: Final = 500
LIVENESS_STALL_MS: Final = 10_000
"""Longer than a slow disk or a large command holds up a loop, longer than a lease lives without it, too."""
ANSWER_TIMEOUT_MS: Final = 800
"""Kubelet waits for a second."""

WhyNotReady = Callable[[], str | None]


class Verdict(NamedTuple):
    """`reason` is one line, for people."""

    is_good: bool
    reason: str


class Health:
    """Made on the loop that it watches. `ready_when` sets who is asked; before that, and after `not_ready`,
    the process is not. `liveness` and `readiness` are for other threads.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._loop = asyncio.get_running_loop()
        self._why_not: WhyNotReady = lambda: "starting"
        self._ticked_s = monotonic_s()
        self._tick_handle = self._loop.call_later(TICK_MS / 1000, self._tick)

    def not_ready(self, reason: str) -> None:
        """From now on, for this reason."""
        self._why_not = lambda: reason

    def ready_when(self, why_not: WhyNotReady) -> None:
        """Whenever it answers None; else what it answers is the reason. Called on the loop."""
        self._why_not = why_not

    def close(self) -> None:
        self._tick_handle.cancel()

    def _tick(self) -> None:
        self._ticked_s = self._monotonic_s()
        self._tick_handle = self._loop.call_later(TICK_MS / 1000, self._tick)

    # -- from any thread but the loop's

    def liveness(self) -> Verdict:
        silent_ms = (self._monotonic_s() - self._ticked_s) * 1000
        if silent_ms > LIVENESS_STALL_MS:
            return Verdict(False, f"the event loop stands still for {silent_ms / 1000:.0f} s")
        return Verdict(True, "alive")

    def readiness(self) -> Verdict:
        answers: list[str | None] = []
        answered = threading.Event()

        def answer() -> None:
            try:
                answers.append(self._why_not())
            except Exception as error:  # noqa: BLE001 - a bug in a probe must not end the loop
                answers.append(f"readiness can't be told: {error!r}")
            answered.set()

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:
            return Verdict(False, "stopped")
        if not answered.wait(ANSWER_TIMEOUT_MS / 1000):
            return Verdict(False, "the event loop is busy")
        why_not = answers[0]
        return Verdict(True, "ready") if why_not is None else Verdict(False, why_not)
