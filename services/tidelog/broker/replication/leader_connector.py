"""Opens connections to the inter-broker listeners of other brokers, with TLS and a SASL login as the listener
asks for them.

The login is that of `sasl.mechanism.inter.broker.protocol`. A session with an end is renewed before
(KIP-368).
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from typing import Any, Final

import structlog

from tidelog.broker.cluster.view import CurrentSettings
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.net.tls import TlsFileError, client_context
from tidelog.broker.replication.leader_connection import (
    CONNECT_TIMEOUT_MS,
    ConnectionLostError,
    LeaderConnection,
    OnLost,
    Question,
    open_connection,
)
from tidelog.model.brokers import Endpoint
from tidelog.sasl import AuthenticationError
from tidelog.sasl.login import SaslLogin
from tidelog.sasl.scram import NONCE_BYTES
from tidelog.settings.sasl_settings import inter_broker_login
from tidelog.settings.setting import SettingError
from tidelog.settings.tls_settings import plan_tls
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

RENEWED_AT: Final = 0.85
"""The part of a session's lifetime after which the follower authenticates again (KIP-368)."""
BUSY_PAUSE_S: Final = 0.01
"""The pause before another attempt to send a token while too many requests are in flight."""

_log = structlog.get_logger(__name__)


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


async def log_in(connection: LeaderConnection, login: SaslLogin, timeout_ms: int) -> int:
    """Authenticates the connection. Returns the lifetime of the session in ms, 0 if it has no end. Raises
    ConnectionLostError if the leader refuses the login.
    """
    handshake = Question(ApiKey.SASL_HANDSHAKE, 1)
    authenticate = Question(ApiKey.SASL_AUTHENTICATE, 2)
    chosen: SaslHandshakeResponse = await _ask(
        connection, handshake, SaslHandshakeRequest(login.mechanism), timeout_ms
    )
    if chosen.error_code:
        raise ConnectionLostError(
            f"the leader does not accept {login.mechanism} (sasl.mechanism.inter.broker.protocol)"
        )
    tokens = login.tokens(secrets.token_urlsafe(NONCE_BYTES))
    token: bytes | None = tokens.first()
    lifetime_ms = 0
    while token is not None:
        answer: SaslAuthenticateResponse = await _ask(
            connection, authenticate, SaslAuthenticateRequest(token), timeout_ms
        )
        if answer.error_code:
            raise ConnectionLostError(f"the leader refuses the login of {login.user}")
        lifetime_ms = answer.session_lifetime_ms
        try:
            token = tokens.reply(bytes(answer.auth_bytes))
        except AuthenticationError as error:
            raise ConnectionLostError(f"the login at the leader failed: {error}") from error
    return lifetime_ms


async def keep_logged_in(
    connection: LeaderConnection, login: SaslLogin, lifetime_ms: int, timeout_ms: int
) -> None:
    """Authenticates again before each end of the session, until the connection is closed."""
    while lifetime_ms > 0 and not connection.is_closed:
        await asyncio.sleep(RENEWED_AT * lifetime_ms / 1000)
        if connection.is_closed:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                lifetime_ms = await log_in(connection, login, timeout_ms)
        except (ConnectionLostError, TimeoutError) as error:
            _log.warning("the leader did not renew the session", reason=str(error))
            return  # the leader closes the connection, and the link opens another


# `Any`: the types of request and response belong to the question.
async def _ask(connection: LeaderConnection, question: Question, request: Any, timeout_ms: int) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_response(response: Any) -> None:
        if isinstance(response, SaslAuthenticateResponse):
            response.auth_bytes = bytes(response.auth_bytes)  # the buffer is valid only now
        if not answered.done():
            answered.set_result(response)

    while True:
        try:
            connection.send(question, request, timeout_ms, on_response)
        except BufferError:
            await asyncio.sleep(BUSY_PAUSE_S)
        else:
            return await answered
