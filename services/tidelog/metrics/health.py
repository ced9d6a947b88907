"""Liveness and readiness of a process, for the probes of Kubernetes.

A process is alive if its event loop runs, even while it recovers logs or waits for etcd. If the loop has not
run for LIVENESS_STALL_MS, the process should be killed. The service itself decides whether it is ready. It is
asked on its own event loop, so it may use all its objects.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

TICK_MS: Final = 500
LIVENESS_STALL_MS: Final = 10_000
"""Longer than a slow disk or a large command blocks the loop, and longer than a lease lives without renewal.
"""
ANSWER_TIMEOUT_MS: Final = 800
"""Kubelet waits one second."""

WhyNotReady = Callable[[], str | None]


class Verdict(NamedTuple):
    """The answer to a probe. `reason` is one line for people."""

    is_good: bool
    reason: str


class Health:
    """Answers the probes of one process. It is created on the event loop that it watches. The process is not
    ready before `ready_when` and after `not_ready`. Other threads call `liveness` and `readiness`.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._loop = asyncio.get_running_loop()
        self._why_not: WhyNotReady = lambda: "starting"
        self._ticked_s = monotonic_s()
        self._tick_handle = self._loop.call_later(TICK_MS / 1000, self._tick)

    def not_ready(self, reason: str) -> None:
        """Makes the process not ready, for this reason."""
        self._why_not = lambda: reason

    def ready_when(self, why_not: WhyNotReady) -> None:
        """Makes the process ready whenever `why_not` returns None; otherwise its result is the reason. It is
        called on the event loop.
        """
        self._why_not = why_not

    def close(self) -> None:
        self._tick_handle.cancel()

    def _tick(self) -> None:
        self._ticked_s = self._monotonic_s()
        self._tick_handle = self._loop.call_later(TICK_MS / 1000, self._tick)

    def liveness(self) -> Verdict:
        """Returns whether the event loop has run lately."""
        silent_ms = (self._monotonic_s() - self._ticked_s) * 1000
        if silent_ms > LIVENESS_STALL_MS:
            return Verdict(False, f"the event loop has not run for {silent_ms / 1000:.0f} s")
        return Verdict(True, "alive")

    def readiness(self) -> Verdict:
        """Returns whether the service is ready, by its own judgement."""
        answers: list[str | None] = []
        answered = threading.Event()

        def answer() -> None:
            try:
                answers.append(self._why_not())
            except Exception as error:  # noqa: BLE001 - a bug in a probe must not end the loop
                answers.append(f"the readiness check failed: {error!r}")
            answered.set()

        try:
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:
            return Verdict(False, "stopped")
        if not answered.wait(ANSWER_TIMEOUT_MS / 1000):
            return Verdict(False, "the event loop is busy")
        why_not = answers[0]
        return Verdict(True, "ready") if why_not is None else Verdict(False, why_not)
