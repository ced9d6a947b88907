"""Calls into the loop of the clients for threads."""

from __future__ import annotations

import pytest

from tidelog.client.threads.loop_thread import LoopThread


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
