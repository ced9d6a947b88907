"""Samples the health of the cluster while nobody looks, so that the history of the last hour has no gaps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor

from tidelog.client.errors import ClientError
from tidelog.console.core.isr_history import SAMPLE_INTERVAL_MS
from tidelog.model.errors import KafkaError


class HealthSampler:
    """Samples once in an interval from `start` to `close`. The history has a gap where the cluster did not
    answer.
    """

    def __init__(
        self, sample: Callable[[int], None], worker: Executor, interval_ms: int = SAMPLE_INTERVAL_MS
    ) -> None:
        """`sample` gets the interval, and runs in a thread of `worker`."""
        self._sample = sample
        self._worker = worker
        self._interval_ms = interval_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the samples, and waits for one that is running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(ClientError, KafkaError):  # the next sample may succeed
                self._worker.submit(self._sample, self._interval_ms).result()
            self._stopping.wait(self._interval_ms / 1000)
