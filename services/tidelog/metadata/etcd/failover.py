"""Keeps one connection to an etcd member that answers, and moves to the next endpoint when that member
fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from tidelog.kernel.instants import Backoff
from tidelog.kernel.slices import TaskSet
from tidelog.metadata.etcd.connection import EtcdConnection, EtcdOptions, Metadata, call_metadata
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, StoreRefusedError
from tidelog.metadata.store import StoreUnavailableError

BACKOFF: Final = Backoff(50, 1000)
"""The pauses after failed rounds over all endpoints."""
# A member may reject a token because the member is behind or because the users were just changed. After this
# many renewals, the cause must be the user.
MAX_TOKEN_RENEWALS: Final = 3

T = TypeVar("T")
Invoke = Callable[[EtcdConnection, float, Metadata], Awaitable[T]]

_log = structlog.get_logger(__name__)


class EtcdConnections:
    """The connection of one event loop to etcd. A single task connects, and all callers wait for that
    task.
    """

    def __init__(self, options: EtcdOptions) -> None:
        """Raises EtcdAddressError."""
        self._options = options
        self._endpoints = options.parsed_endpoints()
        self._next = 0
        self._current: EtcdConnection | None = None
        self.token: str | None = None
        self._needs_token = bool(options.username)
        self._connector: asyncio.Task[None] | None = None
        self._leaving: TaskSet[None] = TaskSet()
        self._failure = "no endpoint was tried yet"
        self._is_closed = False

    @property
    def metadata(self) -> Metadata:
        """Metadata for each call."""
        return call_metadata(self.token)

    async def get(self, deadline_s: float | None) -> EtcdConnection:
        """Returns a connection that is up and has a token.

        `deadline_s` is an instant of the loop's clock; None means no deadline. Raises StoreUnavailableError
        and StoreRefusedError.
        """
        loop = asyncio.get_running_loop()
        while True:
            self.check_open()
            connection = self._current
            if connection is not None and connection.is_ready and not self._needs_token:
                return connection
            if self._connector is None:
                self._connector = loop.create_task(self._connect(), name="etcd-connector")
                self._connector.add_done_callback(self._connector_ended)
            connector = self._connector
            timeout_s = None if deadline_s is None else max(0.0, deadline_s - loop.time())
            done, _ = await asyncio.wait([connector], timeout=timeout_s)
            if not done:
                raise StoreUnavailableError(f"no etcd endpoint answers: {self._failure}")
            if not connector.cancelled():
                connector.result()

    async def call(self, invoke: Invoke[T], *, may_repeat: bool) -> T:
        """Calls `invoke` with a connection, a timeout in seconds and the metadata, and retries it after a
        failure.

        If `may_repeat` is false, a call is retried only if etcd certainly did not execute it. Raises
        CallFailedError for a final answer (see CallFault), else StoreUnavailableError.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._options.operation_timeout_ms / 1000
        failures, renewals = 0, 0
        while True:
            connection = await self.get(deadline_s)
            token = self.token
            left_s = max(0.001, deadline_s - loop.time())
            if may_repeat:
                left_s = min(left_s, self._options.attempt_timeout_ms / 1000)
            try:
                return await invoke(connection, left_s, self.metadata)
            except CallFailedError as error:
                self.check_open()
                if self.lacks_token(error, token) and renewals < MAX_TOKEN_RENEWALS:
                    renewals += 1
                    self.forget_token(token)
                    continue
                if error.fault not in (CallFault.UNKNOWN, CallFault.NOT_DONE):
                    raise
                self.retire(connection, error.details)
                failures += 1
                is_over = loop.time() + BACKOFF.delay_ms(failures) / 1000 >= deadline_s
                if is_over or (error.fault is CallFault.UNKNOWN and not may_repeat):
                    raise StoreUnavailableError(
                        f"etcd at {connection.endpoint.target}: {error.details}"
                    ) from error
            await asyncio.sleep(BACKOFF.delay_ms(failures) / 1000)

    def lacks_token(self, error: CallFailedError, token: str | None) -> bool:
        """Returns whether the call that used this token may succeed with another one.

        etcd takes a client without a token for the user that its certificate names. If etcd has required
        passwords only since this client connected, it therefore denies the permission to that user.
        """
        was_refused = error.fault is CallFault.REFUSED and token is None and bool(self._options.username)
        return error.fault is CallFault.TOKEN or was_refused

    def forget_token(self, token: str | None) -> None:
        """Discards a token that etcd rejected. The next `get` obtains another one."""
        if token == self.token and self._options.username:
            self.token = None
            self._needs_token = True

    def retire(self, connection: EtcdConnection, reason: str) -> None:
        """Stops using the connection for new calls. Calls in progress may finish within the operation
        timeout.

        The next connection obtains a new token: etcd does not answer a call whose token is newer than its own
        history, as after a restore from a backup.
        """
        if connection.is_retired:
            return
        connection.retire()
        self.forget_token(self.token)
        self._failure = f"{connection.endpoint.target}: {reason}"
        _log.warning(
            "an etcd endpoint failed; trying the next one", endpoint=connection.endpoint.target, reason=reason
        )
        if connection is self._current:
            self._current = None
            self._next = (self._endpoints.index(connection.endpoint) + 1) % len(self._endpoints)
        self._close_after(connection, self._options.operation_timeout_ms / 1000)

    def check_open(self) -> None:
        """Raises StoreUnavailableError."""
        if self._is_closed:
            raise StoreUnavailableError("the metadata store is closed")

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in (self._connector, *self._leaving):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._current is not None:
            await self._current.close()

    def _close_after(self, connection: EtcdConnection, grace_s: float) -> None:
        self._leaving.start(connection.close(grace_s), name="etcd-close")

    def _connector_ended(self, task: asyncio.Task[None]) -> None:
        self._connector = None
        if not task.cancelled():
            # marks the exception as retrieved: waiting callers get it too, but there may be none
            task.exception()

    async def _connect(self) -> None:
        """Connects and obtains a token. Raises StoreRefusedError."""
        failures, tried = 0, 0
        while True:
            if tried == len(self._endpoints):
                failures, tried = failures + 1, 0
                await asyncio.sleep(BACKOFF.delay_ms(failures) / 1000)
            tried += 1
            connection = self._current
            if connection is None or not connection.is_ready:
                connection = await self._open_next()
                if connection is None:
                    continue
            if not self._needs_token:
                return
            try:
                self.token = await connection.authenticate(self._options)
            except CallFailedError as error:
                if error.fault is CallFault.REFUSED:
                    raise StoreRefusedError(
                        f"etcd rejects user {self._options.username}: {error.details}"
                    ) from error
                self.retire(connection, error.details)
            else:
                self._needs_token = False
                return

    async def _open_next(self) -> EtcdConnection | None:
        if self._current is not None:
            before, self._current = self._current, None
            before.retire()
            self._close_after(before, 0)
        endpoint = self._endpoints[self._next]
        try:
            self._current = await EtcdConnection.open(endpoint, self._options)
        except (OSError, TimeoutError) as error:
            self._failure = f"{endpoint.target}: {str(error) or 'no connection in time'}"
            self._next = (self._next + 1) % len(self._endpoints)
            return None
        return self._current
