"""A thread with an event loop, in which the client on asyncio runs for callers in other threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from tidelog.client.errors import ClosedError
from tidelog.client.shell.tasks import CALLED_IN_CALLBACK, HomeProcess

CANCEL_TIMEOUT_S: Final = 1.0
"""The time in which tasks end that were cancelled."""


class AsyncConsumer(Protocol):
    """A consumer on asyncio."""

    async def start(self) -> None: ...

    async def close(self, *, commits: bool) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=AsyncConsumer)


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


class ThreadedConsumer(Generic[C]):
    """A consumer on asyncio that works in a thread of its own. Use it from one thread at a time."""

    def __init__(self, subject: str, make: Callable[[], C]) -> None:
        """`make` makes the consumer in its thread; `subject` names it in errors."""
        self._subject = subject
        self._make = make
        self._consumer: C | None = None
        self._thread: LoopThread | None = None
        self._is_ending = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(lambda consumer: consumer.__aexit__(kind, error, trace))

    def start(self) -> None:
        """Connects to a broker. Raises ClientError, SettingsError."""
        self._thread = LoopThread(f"tidelog-{self._subject.replace(' ', '-')}")
        try:
            self._consumer = self._thread.call(self._started())
        except BaseException:
            self.close(commits=False)
            raise

    async def _started(self) -> C:
        made = self._make()
        await made.start()
        return made

    def close(self, *, commits: bool = True) -> None:
        """Commits and leaves the group, as `close` of the consumer on asyncio does."""
        self._end(lambda consumer: consumer.close(commits=commits))

    def _end(self, close: Callable[[C], Coroutine[Any, Any, None]]) -> None:
        thread = self._thread
        if thread is None or not thread.home.is_current:
            return
        thread.check_caller(runs_callbacks=True)
        if self._is_ending:
            return
        self._is_ending = True
        try:
            if self._consumer is not None:
                thread.call(close(self._consumer), runs_callbacks=True)
        finally:
            self._thread = None
            self._is_ending = False
            thread.stop()

    def _running(self) -> C:
        if self._thread is None or self._consumer is None:
            raise ClosedError(
                f"the {self._subject} is closed or was not started: use `with`, or call `start`"
            )
        return self._consumer

    def _call(self, work: Coroutine[Any, Any, T], *, runs_callbacks: bool = False) -> T:
        assert self._thread is not None
        return self._thread.call(work, runs_callbacks=runs_callbacks)

    def _poll(self, poll: Callable[[C], Coroutine[Any, Any, T]], give_back: Callable[[C, T], None]) -> T:
        """Returns what a poll of the consumer returns. If an exception interrupts the wait for it, as Ctrl-C
        does, `give_back` gets what the poll has found, because the application does not.
        """
        consumer = self._running()
        assert self._thread is not None
        self._thread.check_caller(runs_callbacks=True)
        found: list[T] = []

        async def work() -> T:
            found.append(await poll(consumer))
            return found[0]

        async def undo() -> None:
            for each in found:
                give_back(consumer, each)

        try:
            return self._call(work(), runs_callbacks=True)
        except BaseException:
            if self._thread is not None:
                self._call(undo())  # an interrupted poll has been cancelled, and ends first
            raise

    def _in_loop(self, function: Callable[[C], T]) -> T:
        """Calls a method that does not wait, in the thread of the loop."""
        consumer = self._running()

        async def work() -> T:
            return function(consumer)

        return self._call(work())
