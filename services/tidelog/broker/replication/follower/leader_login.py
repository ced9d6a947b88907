"""The SASL login of a follower at its leader (`sasl.mechanism.inter.broker.protocol`)."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import structlog

from tidelog.broker.replication.follower.leader_connection import (
    ConnectionLostError,
    LeaderConnection,
    Question,
)
from tidelog.sasl import AuthenticationError
from tidelog.sasl.login import SaslLogin
from tidelog.sasl.scram import NONCE_BYTES
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

RENEWED_AT: Final = 0.85
"""The part of a session's lifetime after which the follower authenticates again (KIP-368)."""
BUSY_PAUSE_S: Final = 0.01
"""The pause before another attempt to send a token while too many requests are in flight."""

_log = structlog.get_logger(__name__)


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
