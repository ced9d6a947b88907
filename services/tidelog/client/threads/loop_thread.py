"""A thread with an event loop, in which the client on asyncio runs for callers in other threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from tidelog.client.errors import ClosedError
from tidelog.client.shell.tasks import CALLED_IN_CALLBACK, HomeProcess

CANCEL_TIMEOUT_S: Final = 1.0
"""The time in which tasks end that were cancelled."""


T = TypeVar("T")


class LoopThread:
    """A daemon thread, so that a program can end although it forgot to close its client."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.home: HomeProcess = HomeProcess("client")
        self._is_stopped = False
        self._lock = threading.RLock()
        """Held while work is given to the loop, so that none comes after the last round of the loop."""
        self._changed = threading.Condition()
        """Notified when a call ends, and when a callback waits."""
        self._callbacks: deque[tuple[Callable[[], object], Future[object]]] = deque()
        self._callback_thread: int | None = None
        """The thread that runs a callback."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)  # only if a close was interrupted
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.wait(pending, timeout=CANCEL_TIMEOUT_S))
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, T], *, runs_callbacks: bool = False) -> T:
        """Runs a coroutine in the loop and returns its result. The calling thread waits, and meanwhile runs
        the callbacks of `call_back` if `runs_callbacks` is True.

        Raises RuntimeError in the thread of the loop, which would wait for itself, and with `runs_callbacks`
        in a callback; ClosedError after `stop` and in a forked child, which does not have the thread.
        """
        try:
            self.home.check()
            self.check_caller(runs_callbacks=runs_callbacks)
            with self._lock:
                if self._is_stopped:
                    raise ClosedError("the client was closed")
                done = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise
        try:
            if runs_callbacks:
                self._run_callbacks(done)
            return done.result()
        except BaseException:
            done.cancel()  # without effect unless the wait was interrupted
            raise

    def _run_callbacks(self, done: Future[T]) -> None:
        """Runs callbacks in this thread until `done` is done."""

        def notify(_: Future[T]) -> None:
            with self._changed:
                self._changed.notify_all()

        done.add_done_callback(notify)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._callbacks or done.done())
                if not self._callbacks:
                    return
                callback, result = self._callbacks.popleft()
            if not result.set_running_or_notify_cancel():
                continue
            self._callback_thread = threading.get_ident()
            try:
                result.set_result(callback())
            except BaseException as error:
                if not isinstance(error, Exception):
                    result.set_exception(RuntimeError("a rebalance callback was interrupted"))
                    raise
                result.set_exception(error)
            finally:
                self._callback_thread = None

    async def call_back(self, callback: Callable[[], object]) -> None:
        """Runs a function, or a coroutine function, on behalf of a thread that is or will be in a `call` with
        `runs_callbacks`. The function runs in that thread, which may make other calls then; a coroutine runs
        in the loop.
        """
        result: Future[object] = Future()
        with self._changed:
            self._callbacks.append((callback, result))
            self._changed.notify_all()
        waiting = await asyncio.wrap_future(result)
        if inspect.isawaitable(waiting):
            await waiting

    def check_caller(self, *, runs_callbacks: bool = False) -> None:
        """Raises RuntimeError in the thread of the loop, and with `runs_callbacks` in a callback."""
        if runs_callbacks and self._callback_thread == threading.get_ident():
            raise RuntimeError(CALLED_IN_CALLBACK)
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"a callback in the thread '{self._thread.name}' called a method that waits for this thread: "
                "call it from another thread"
            )

    def end_after(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the loop, and then ends the thread. The caller does not wait, and may hold any
        lock, as the garbage collector does.
        """

        async def finish() -> None:
            try:
                await work
                await asyncio.sleep(0)  # the connections end in the next round of the loop
            finally:
                self._is_stopped = True
                self.loop.stop()

        asyncio.run_coroutine_threadsafe(finish(), self.loop)

    def join(self) -> None:
        """Waits for the end of the thread."""
        self._thread.join()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.join()
