"""The beginning of a connection: the versions of the broker's APIs, then the login."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

from tidelog import __version__
from tidelog.client.address import Address
from tidelog.client.errors import (
    AuthenticationFailedError,
    MechanismRefusedError,
    NotKafkaError,
    UnsupportedApiError,
)
from tidelog.model.errors import ErrorCode
from tidelog.sasl import AuthenticationError
from tidelog.sasl.login import ClientLogin, ClientTokens
from tidelog.sasl.scram import NONCE_BYTES
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.codec import MalformedMessageError, response_decoder
from tidelog.wire.headers import decode_response_header
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.wire.schema import Message

CLIENT_SOFTWARE_NAME: Final = "tidelog"
CLIENT_SOFTWARE_VERSION: Final[str] = __version__
RENEWED_AT: Final = 0.85
"""The part of a session's lifetime after which the client authenticates again (KIP-368)."""
_ERROR_CODE: Final = struct.Struct(">h")
_CORRELATION_ID_BYTES: Final = 4


class VersionRange(NamedTuple):
    min_version: int
    max_version: int


class Served(NamedTuple):
    """The offer of a broker: versions by API key, and the finalized levels of features."""

    versions: Mapping[int, VersionRange]
    features: Mapping[str, int]


class Reply(NamedTuple):
    """The frame of a response without its length, and the correlation id of the request."""

    correlation_id: int
    frame: memoryview


Send: TypeAlias = Callable[[Message, int], Awaitable[Reply]]
"""Sends a request in a version. The result is the frame of its response."""


def api_key_of(request: Message) -> int:
    return cast("int", request.API_KEY)  # type: ignore[attr-defined]  # only requests have one


def choose_version(
    served: Mapping[int, VersionRange],
    address: Address,
    api_key: int,
    *,
    at_least: int = 0,
    at_most: int | None = None,
) -> int:
    """Returns the newest version within the bounds that both sides know. Raises UnsupportedApiError."""
    spec = api_spec(api_key)
    found = served.get(api_key)
    if found is None:
        raise UnsupportedApiError(f"the broker at {address} does not serve {spec.name}")
    newest = min(found.max_version, spec.max_version, spec.max_version if at_most is None else at_most)
    oldest = max(found.min_version, spec.min_version, at_least)
    if newest < oldest:
        raise UnsupportedApiError(
            f"the broker at {address} serves {spec.name} {found.min_version} to "
            f"{found.max_version}, but this command needs {max(spec.min_version, at_least)} or newer"
        )
    return newest


def decode_answer(
    address: Address, api_key: int, version: int, reply: Reply
) -> Any:  # each API has its class
    """Returns the message of a response. Raises NotKafkaError."""
    try:
        correlation_id, position = decode_response_header(reply.frame, 0, api_key, version)
        message = response_decoder(api_key, version)(reply.frame, position)[0]
    except MalformedMessageError as error:
        raise NotKafkaError(f"the response of {address} can't be decoded: {error}") from error
    if correlation_id != reply.correlation_id:
        raise NotKafkaError(f"{address} answered request {correlation_id} instead of {reply.correlation_id}")
    return message


async def ask_versions(address: Address, send: Send) -> Served:
    """Requests the broker's versions.

    A broker that does not know our version of ApiVersions answers in version 0 (KIP-511). Raises
    NotKafkaError, UnsupportedApiError.
    """
    request = ApiVersionsRequest(CLIENT_SOFTWARE_NAME, CLIENT_SOFTWARE_VERSION)
    version = api_spec(ApiKey.API_VERSIONS).max_version
    while True:
        reply = await send(request, version)
        if len(reply.frame) < _CORRELATION_ID_BYTES + _ERROR_CODE.size:
            raise NotKafkaError(f"the answer of {address} is too short for a Kafka broker")
        (code,) = _ERROR_CODE.unpack_from(reply.frame, _CORRELATION_ID_BYTES)
        refused = code == ErrorCode.UNSUPPORTED_VERSION
        message: ApiVersionsResponse = decode_answer(
            address, ApiKey.API_VERSIONS, 0 if refused else version, reply
        )
        if not refused:
            break
        if version == 0:
            raise UnsupportedApiError(f"the broker at {address} serves no version of ApiVersions")
        known = [row.max_version for row in message.api_keys if row.api_key == ApiKey.API_VERSIONS]
        version = min(version - 1, *known) if known else 0
    if message.error_code:
        raise NotKafkaError(f"{address} answered ApiVersions with error {message.error_code}")
    return Served(
        {row.api_key: VersionRange(row.min_version, row.max_version) for row in message.api_keys},
        {row.name: row.max_version_level for row in message.finalized_features},
    )


def begin_login(address: Address, login: ClientLogin) -> ClientTokens:
    """Begins a login, which may request a token from an identity provider. Raises
    AuthenticationFailedError.
    """
    try:
        return login.tokens(secrets.token_urlsafe(NONCE_BYTES))
    except AuthenticationError as error:
        raise AuthenticationFailedError(f"the login at {address} failed: {error}") from error


async def log_in(
    address: Address, served: Mapping[int, VersionRange], login: ClientLogin, tokens: ClientTokens, send: Send
) -> int:
    """Logs in and returns the lifetime of the session in milliseconds, 0 if it is unlimited. Raises
    AuthenticationFailedError.
    """

    async def ask(request: Message, at_least: int) -> Any:
        api_key = api_key_of(request)
        version = choose_version(served, address, api_key, at_least=at_least)
        return decode_answer(address, api_key, version, await send(request, version))

    chosen: SaslHandshakeResponse = await ask(SaslHandshakeRequest(login.mechanism), 1)
    if chosen.error_code:
        raise MechanismRefusedError(
            f"{address} does not accept the SASL mechanism {login.mechanism}; "
            f"it accepts {', '.join(chosen.mechanisms) or 'none'}"
        )
    lifetime_ms = 0
    try:
        token: bytes | None = tokens.first()
        while token is not None:
            answer: SaslAuthenticateResponse = await ask(SaslAuthenticateRequest(token), 0)
            if answer.error_code:
                reason = answer.error_message or f"error {answer.error_code}"
                raise AuthenticationFailedError(f"{address} refuses the login of {login.user}: {reason}")
            lifetime_ms = answer.session_lifetime_ms
            token = tokens.reply(bytes(answer.auth_bytes))
    except AuthenticationError as error:
        raise AuthenticationFailedError(f"the login at {address} failed: {error}") from error
    return lifetime_ms
