"""SaslHandshake v0 and v1, and SaslAuthenticate v0 to v2 (KIP-43, KIP-152, KIP-368).

After a SaslHandshake v0, the tokens arrive without request headers; the dispatcher passes them to
`sasl_authenticate`, too. A failure is answered after `connection.failed.authentication.delay.ms`, and then
the connection is closed. The response does not tell why the authentication failed. On a listener without
SASL, both APIs fail with ILLEGAL_SASL_STATE, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidelog.broker.requests.request import PARKED, Unanswered
from tidelog.model.errors import ErrorCode
from tidelog.sasl import AuthenticationError
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from tidelog.broker.requests.request import Authentication, RequestContext

_NO_SASL: Final = "This listener does not authenticate connections with SASL"
_NOT_NOW: Final = "SaslHandshake must come before SaslAuthenticate"
_CLOSING: Final = frozenset({ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.SASL_AUTHENTICATION_FAILED})


def sasl_handshake(
    request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse | Coroutine[object, None, Unanswered]:
    authentication = context.connection.authentication
    if authentication is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    code = authentication.choose(request.mechanism, is_raw=context.api_version == 0)
    response = SaslHandshakeResponse(code, list(authentication.mechanisms))
    return _refuse(context, response, authentication.failure_delay_s) if code in _CLOSING else response


def sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse | Coroutine[object, None, SaslAuthenticateResponse | Unanswered]:
    authentication = context.connection.authentication
    if authentication is None:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _NO_SASL)
    if not authentication.is_expecting_token:
        return SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, _NOT_NOW)
    token = bytes(request.auth_bytes)
    try:
        preparation = authentication.preparation(token)
        if preparation is None:
            return _accepted(authentication.take(token))
    except AuthenticationError:
        return _refuse(context, _refusal(authentication), authentication.failure_delay_s)
    return _authenticate_prepared(context, authentication, token, preparation)


async def _authenticate_prepared(
    context: RequestContext, authentication: Authentication, token: bytes, preparation: Awaitable[None]
) -> SaslAuthenticateResponse | Unanswered:
    await preparation
    try:
        return _accepted(authentication.take(token))
    except AuthenticationError:
        return await _refuse(context, _refusal(authentication), authentication.failure_delay_s)


def _accepted(step: tuple[bytes, int]) -> SaslAuthenticateResponse:
    token, lifetime_ms = step
    return SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms)


def _refusal(authentication: Authentication) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        f"The authentication with {authentication.mechanism} failed: the credentials are not valid",
    )


async def _refuse(
    context: RequestContext, response: SaslHandshakeResponse | SaslAuthenticateResponse, delay_s: float
) -> Unanswered:
    """Sends the response after the delay, and closes the connection."""
    await asyncio.sleep(delay_s)
    context.reply(response)
    context.connection.finish()
    return PARKED  # the caller must not answer again
