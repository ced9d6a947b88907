"""The process of a console while it serves."""

from __future__ import annotations

import sys
import threading
import time
from typing import NoReturn

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import UnreachableError
from tidelog.console.server import SWITCH_INTERVAL_S, ConsoleServer

pytestmark = pytest.mark.integration
WAIT_S = 10.0


def connect(known: tuple[str, ...]) -> NoReturn:
    raise UnreachableError("there is no cluster")


def test_searches_give_pythons_lock_back_soon_while_a_console_serves() -> None:
    before_s = sys.getswitchinterval()
    server = ConsoleServer(Address("127.0.0.1", 0), connect, interval_ms=1_000)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + WAIT_S
        while sys.getswitchinterval() == before_s:
            assert time.monotonic() < until, "the interval is that of Python"
            time.sleep(0.01)
        # CPython keeps whole microseconds.
        assert abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-5
    finally:
        server.stop()
        thread.join(WAIT_S)
    assert sys.getswitchinterval() == before_s
