"""Calls into the loop of the clients for threads."""

from __future__ import annotations

import threading

import pytest

from tidelog.client.errors import ClosedError
from tidelog.client.threads.loop_thread import LoopThread

WAIT_S = 2.0


async def nothing() -> int:
    return 1


def test_a_call_from_a_callback_raises_and_does_not_deadlock() -> None:
    thread = LoopThread("loop")
    try:

        async def call_back() -> None:
            thread.call(nothing())

        with pytest.raises(RuntimeError, match="thread 'loop' called a method that waits"):
            thread.call(call_back())
        assert thread.call(nothing()) == 1
    finally:
        thread.stop()


def test_a_call_while_the_loop_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that another thread's close overtook waited for ever for a loop that had ended."""
    thread = LoopThread("ending")
    has_ended, may_close = threading.Event(), threading.Event()
    close = thread.loop.close

    def wait_and_close() -> None:
        has_ended.set()
        may_close.wait(WAIT_S)
        close()

    monkeypatch.setattr(thread.loop, "close", wait_and_close)
    outcomes: list[BaseException | int] = []

    def call() -> None:
        try:
            outcomes.append(thread.call(nothing()))
        except ClosedError as error:
            outcomes.append(error)

    stopper = threading.Thread(target=thread.stop)
    stopper.start()
    assert has_ended.wait(WAIT_S)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(WAIT_S)
    may_close.set()
    stopper.join()
    assert not caller.is_alive(), "the call waits for ever"
    assert isinstance(outcomes[0], ClosedError)
