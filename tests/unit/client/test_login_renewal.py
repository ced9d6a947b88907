"""A connection that logs in again (KIP-368) while several tasks use it."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import AuthenticationFailedError, ConnectionLostError
from tidelog.client.security import NO_SECURITY
from tidelog.client.shell.connection import AsyncConnection
from tidelog.wire.messages.metadata import MetadataRequest


class Renewing(AsyncConnection):
    """A connection whose session ends soon, and whose login lasts until `answer` is set."""

    def __init__(self) -> None:
        super().__init__(Address("h", 1), "c", NO_SECURITY)
        self._renew_at_s = 0.0
        self.logins = 0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _authenticate(self, timeout_s: float) -> None:
        self.logins += 1
        await self.answer
        self._renew_at_s = None


def test_no_request_is_sent_while_a_login_is_renewed() -> None:
    """A broker closes the connection if another request comes between the steps of SASL."""

    async def scenario() -> None:
        connection = Renewing()
        first = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        assert connection.must_renew_login, "a request that is sent now breaks the login"
        second = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        assert not second.done()
        connection.answer.set_result(None)
        await asyncio.gather(first, second)
        assert connection.logins == 1 and not connection.must_renew_login

    asyncio.run(scenario())


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_connection_is_closed_after_half_a_login(is_cancelled: bool) -> None:
    async def scenario() -> None:
        connection = Renewing()
        renewal = asyncio.create_task(connection.renew_login(1))
        await asyncio.sleep(0)
        if is_cancelled:
            renewal.cancel()
        else:
            connection.answer.set_exception(AuthenticationFailedError("no"))
        with pytest.raises((AuthenticationFailedError, asyncio.CancelledError)):
            await renewal
        assert connection.is_closed

    asyncio.run(scenario())


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_renewal_sleeps_until_the_answer_to_a_request_that_was_cancelled(is_answered: bool) -> None:
    """The wait for a cancelled future ends at once, so the renewal spun until the broker answered."""
    steps = 0

    @types.coroutine
    def counted(work: Coroutine[Any, Any, None]) -> Generator[object, None, None]:
        nonlocal steps
        for future in work.__await__():
            steps += 1
            yield future

    async def scenario() -> None:
        connection = Renewing()
        connection.answer.set_result(None)
        replies = [connection.send(MetadataRequest([]), 4, 30) for _ in range(2)]
        replies[-1].cancel()

        async def renew() -> None:
            await counted(connection.renew_login(1))

        renewal = asyncio.create_task(renew())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not renewal.done() and connection.logins == 0
        assert steps == 1, "the renewal spins"
        if is_answered:
            connection._received(memoryview(b""))
            await asyncio.sleep(0)
            assert connection.logins == 0, "the second answer is missing"
            connection._received(memoryview(b""))
            await replies[0]
        else:
            connection.close()
            with pytest.raises(ConnectionLostError):
                await replies[0]
        async with asyncio.timeout(5):
            await renewal
        assert connection.logins == 1

    asyncio.run(scenario())
