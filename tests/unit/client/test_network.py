"""The connections of a client during and after its close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidelog.client.core.settings import ProducerSettings
from tidelog.client.errors import ClosedError
from tidelog.client.shell import network as network_shell
from tidelog.client.shell.network import Network


class Line:
    """A connection that is open until it is closed."""

    is_closed = False

    async def renew_login(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Lines:
    """Opens connections when `may_open` is set, and counts them."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.all: list[Line] = []

    async def open(self, *address: object, **settings: object) -> Line:
        await self.may_open.wait()
        self.all.append(Line())
        return self.all[-1]

    @property
    def open_count(self) -> int:
        return sum(not line.is_closed for line in self.all)


ASKS: list[Callable[[Network], Awaitable[Any]]] = [
    lambda network: network.broker(1),
    lambda network: network.any_broker(),
]


def run(scenario: Callable[[Network, Lines], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def with_lines() -> None:
        lines = Lines()
        monkeypatch.setattr(network_shell, "AsyncConnection", lines)
        network = Network("127.0.0.1:1", ProducerSettings())
        network.learn_node(1, "h", 1)
        await scenario(network, lines)
        assert lines.open_count == 0

    asyncio.run(with_lines())


@pytest.mark.parametrize("ask", ASKS)
def test_a_call_after_the_close_opens_no_connection(
    ask: Callable[[Network], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction in another task was repeated on connections that nobody closed."""

    async def scenario(network: Network, lines: Lines) -> None:
        lines.may_open.set()
        await network.start()
        await network.close()
        with pytest.raises(ClosedError):
            await ask(network)

    run(scenario, monkeypatch)


def test_a_connection_that_opens_during_the_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(network: Network, lines: Lines) -> None:
        opening = asyncio.ensure_future(network.any_broker())
        await asyncio.sleep(0)
        await network.close()
        lines.may_open.set()
        with pytest.raises(ClosedError):
            await opening

    run(scenario, monkeypatch)


def test_a_client_can_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(network: Network, lines: Lines) -> None:
        lines.may_open.set()
        for _ in range(2):
            await network.start()
            await network.broker(1)
            assert lines.open_count == 2
            await network.close()

    run(scenario, monkeypatch)
