"""A blocking connection to a broker: the connection on asyncio, which works in a thread of this process."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

from tidelog.client.address import Address
from tidelog.client.calls import Call
from tidelog.client.handshake import Reply, VersionRange, choose_version
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.client.shell.connection import AsyncConnection
from tidelog.client.threads.loop_thread import LoopThread
from tidelog.wire.schema import Message

DEFAULT_TIMEOUT_S: Final = 30.0

R = TypeVar("R", bound=Message)
T = TypeVar("T")


class PendingAnswer(NamedTuple):
    """A request whose response has not been read."""

    request: Message
    version: int
    reply: asyncio.Future[Reply]


class BrokerConnection:
    """A connection. A ClientError of `call` or `receive` closes it, except UnsupportedApiError."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = "tidelog",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """Connects, requests the broker's versions and authenticates. `timeout_s` limits these and every
        later response.

        Raises UnreachableError, NotTrustedError, NoAnswerError, ConnectionLostError, NotKafkaError,
        AuthenticationFailedError.
        """
        self.address = address
        self._timeout_s = timeout_s
        self._thread = thread_of_calls(os.getpid())
        self._connection = self._thread.call(
            AsyncConnection.open(address, client_id=client_id, security=security, timeout_s=timeout_s)
        )

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        async def work() -> None:
            self._connection.close()

        if self._thread.home.is_current and not self.is_closed:
            self._thread.call(work())

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    @property
    def served(self) -> Mapping[int, VersionRange]:
        """The versions that the broker serves, by API key."""
        return self._connection.served.versions

    @property
    def peer_certificate(self) -> bytes | None:
        """The broker's certificate in DER, None if the connection is not encrypted."""
        return self._connection.peer_certificate

    def version_for(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the newest version within the bounds that both sides know. Raises UnsupportedApiError."""
        return choose_version(self.served, self.address, api_key, at_least=at_least, at_most=at_most)

    def call(
        self,
        request: Message,
        answer: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        wait_ms: int = 0,
        timeout_s: float | None = None,
    ) -> R:
        """Sends a request and returns the response. Raises ClientError.

        `wait_ms` is added to the connection's timeout, because the broker may wait that long. `timeout_s`
        replaces the connection's timeout. The caller has to check error codes in the response.
        """
        limit_s = (self._timeout_s if timeout_s is None else timeout_s) + wait_ms / 1000

        async def work() -> Any:
            await self._connection.renew_login(self._timeout_s)
            return await self._connection.call(request, limit_s, at_least=at_least, at_most=at_most)

        return self._run(work(), answer)

    def send(
        self, request: Message, *, at_least: int = 0, at_most: int | None = None, wait_ms: int = 0
    ) -> PendingAnswer:
        """Sends a request that has a response, and does not wait for it. Raises ClientError."""

        async def work() -> PendingAnswer:
            connection = self._connection
            await connection.renew_login(self._timeout_s)
            version = connection.version_for(request, at_least=at_least, at_most=at_most)
            reply = connection.send(request, version, self._timeout_s + wait_ms / 1000)
            return PendingAnswer(request, version, reply)

        return self._thread.call(work())

    def receive(self, pending: PendingAnswer, answer: type[R]) -> R:
        """Returns the response to a request of `send`. Raises ClientError."""

        async def work() -> Any:
            return self._connection.decode(pending.request, pending.version, await pending.reply)

        return self._run(work(), answer)

    def _run(self, work: Coroutine[Any, Any, Any], answer: type[R]) -> R:
        message = self._thread.call(work)
        assert isinstance(message, answer)
        return message


def answer_of(connection: BrokerConnection, call: Call[T]) -> T:
    """Sends a request and returns what the response means. Raises KafkaError, ClientError."""
    answer = connection.call(call.request, call.answer, at_least=call.at_least, at_most=call.at_most)
    return call.read(answer)


@functools.cache
def thread_of_calls(process_id: int) -> LoopThread:
    """Returns the thread in which the blocking calls of a process wait for their responses. A forked child
    does not have its parent's thread. Two threads that ask first at the same time may make one each, which
    harms nothing.
    """
    return LoopThread("tidelog-calls")
