"""Opens connections to the inter-broker listeners of other brokers, with TLS and a SASL login as the listener
asks for them.
"""

from __future__ import annotations

import asyncio
import ssl

from tidelog.broker.cluster.current_settings import CurrentSettings
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.net.tls import TlsFileError, client_context
from tidelog.broker.replication.follower.leader_connection import (
    CONNECT_TIMEOUT_MS,
    ConnectionLostError,
    LeaderConnection,
    OnLost,
    open_connection,
)
from tidelog.broker.replication.follower.leader_login import keep_logged_in, log_in
from tidelog.model.brokers import Endpoint
from tidelog.settings.sasl_settings import inter_broker_login
from tidelog.settings.setting import SettingError
from tidelog.settings.tls_settings import plan_tls


class LeaderConnector:
    """Opens the connections to one broker, one at a time, and keeps the last one logged in."""

    __slots__ = ("_client_id", "_pool", "_renewal", "_settings")

    def __init__(self, settings: CurrentSettings, pool: BufferPool, client_id: str) -> None:
        self._settings = settings
        self._pool = pool
        self._client_id = client_id
        self._renewal: asyncio.Task[None] | None = None

    async def open(self, endpoint: Endpoint, on_lost: OnLost) -> LeaderConnection:
        """Returns a connection that may be used. Raises ConnectionLostError."""
        settings = self._settings.broker
        connection = await open_connection(
            endpoint,
            self._pool,
            client_id=self._client_id,
            receive_buffer_bytes=settings.replica_socket_receive_buffer_bytes,
            timeout_ms=settings.replica_socket_timeout_ms,
            on_lost=on_lost,
            tls=self._tls_to(endpoint),
        )
        if endpoint.security_protocol.startswith("SASL_"):
            await self._log_in(connection, endpoint)
        return connection

    def close(self) -> None:
        """Stops to renew the login. The caller closes the connection."""
        if self._renewal is not None:
            self._renewal.cancel()

    def _tls_to(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """Raises ConnectionLostError if the certificates cannot be used."""
        if not endpoint.security_protocol.endswith("SSL"):
            return None
        try:
            return client_context(plan_tls(endpoint.listener_name, self._settings.broker.listener_value))
        except (SettingError, TlsFileError) as error:
            raise ConnectionLostError(str(error)) from error

    async def _log_in(self, connection: LeaderConnection, endpoint: Endpoint) -> None:
        """Authenticates a new connection, and again before its session ends. Raises ConnectionLostError."""
        settings = self._settings.broker
        timeout_ms = min(settings.replica_socket_timeout_ms, CONNECT_TIMEOUT_MS)
        try:
            login = inter_broker_login(endpoint.listener_name, settings.listener_value)
            async with asyncio.timeout(timeout_ms / 1000):
                lifetime_ms = await log_in(connection, login, timeout_ms)
        except (TimeoutError, SettingError, ConnectionLostError) as error:
            connection.close()
            reason = str(error) or "the leader did not answer the login in time"
            raise ConnectionLostError(reason) from error
        except BaseException:
            connection.close()
            raise
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = asyncio.get_running_loop().create_task(
            keep_logged_in(connection, login, lifetime_ms, timeout_ms)
        )
