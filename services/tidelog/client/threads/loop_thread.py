"""A thread with an event loop, in which the client on asyncio runs for callers in other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A daemon thread, so that a program can end although it forgot to close its client."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and returns its result. The calling thread waits.

        Raises RuntimeError in the thread of the loop, which would wait for itself.
        """
        try:
            self.check_caller()
        except RuntimeError:
            work.close()
            raise
        done = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return done.result()
        except BaseException:
            done.cancel()  # without effect unless the wait was interrupted
            raise

    def check_caller(self) -> None:
        """Raises RuntimeError in the thread of the loop."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a callback in the thread '{self._thread.name}' called a method that waits for this thread: "
                "call it from another thread"
            )

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
