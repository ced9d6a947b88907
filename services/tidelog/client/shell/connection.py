"""An asynchronous connection to a broker, with many requests in flight.

Kafka's brokers answer the requests of a connection in order. A connection whose oldest request gets no
response in time is closed, and all its requests fail: their outcomes are unknown.

A connection begins with a request of the versions of the broker's APIs, and a login.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from tidelog import __version__
from tidelog.client.address import Address, explained
from tidelog.client.calls import Call
from tidelog.client.errors import (
    AuthenticationFailedError,
    ClientError,
    ConnectionLostError,
    MechanismRefusedError,
    NoAnswerError,
    NotKafkaError,
    NotTrustedError,
    UnreachableError,
    UnsupportedApiError,
)
from tidelog.client.security import ClientSecurity
from tidelog.model.errors import ErrorCode
from tidelog.sasl import AuthenticationError
from tidelog.sasl.login import ClientLogin, ClientTokens
from tidelog.sasl.scram import NONCE_BYTES
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.codec import MalformedMessageError, request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.wire.schema import Message

CLIENT_SOFTWARE_NAME: Final = "tidelog"
CLIENT_SOFTWARE_VERSION: Final[str] = __version__
RENEWED_AT: Final = 0.85
"""The part of a session's lifetime after which the client authenticates again (KIP-368)."""
_ERROR_CODE: Final = struct.Struct(">h")
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""The maximum length of a frame. HTTP and TLS alerts, read as lengths, are far longer."""
LOOK_UP_AGAIN_FOR_S: Final = 10.0
LOOK_UP_BACKOFF_S: Final = 0.2
READ_BUFFER_BYTES: Final = 64 * 1024
_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")
T = TypeVar("T")


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


class _Waiting(NamedTuple):
    correlation_id: int
    timeout_s: float
    deadline_s: float
    reply: asyncio.Future[Reply]


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection. `open` makes one; it is not thread-safe."""

    def __init__(self, address: Address, client_id: str, security: ClientSecurity) -> None:
        self.address = address
        self.served: Served = Served({}, {})
        self.last_used_s: float = 0.0
        self._client_id = client_id
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        """The requests without a response, also those whose callers were cancelled."""
        self._answered_all = asyncio.Event()
        self._correlation_id = 0
        self._failure: ClientError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renew_at_s: float | None = None
        self._renewal = asyncio.Lock()
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None  # a frame that does not fit into the buffer
        self._frame_filled = 0

    @classmethod
    async def open(
        cls, address: Address, *, client_id: str, security: ClientSecurity, timeout_s: float
    ) -> AsyncConnection:
        """Connects, requests the broker's versions and authenticates. Raises ClientError."""
        made = cls(address, client_id, security)
        deadline_s = made._loop.time() + timeout_s
        try:
            try:
                await made._connect(deadline_s)
                async with asyncio.timeout_at(deadline_s):
                    made.served = await made._ask_versions(timeout_s)
            except ClientError as error:
                has_tls = security.tls is not None
                raise await asyncio.to_thread(explained, error, address, has_tls=has_tls) from error
            async with asyncio.timeout_at(deadline_s):
                await made._authenticate(timeout_s)
        except TimeoutError as error:
            made.close()
            raise NoAnswerError(f"no answer from {address} in {timeout_s:g} s") from error
        except BaseException:
            made.close()
            raise
        return made

    @property
    def is_closed(self) -> bool:
        return self._failure is not None

    @property
    def peer_certificate(self) -> bytes | None:
        """The broker's certificate in DER, None if the connection is not encrypted."""
        encrypted = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if encrypted is None else cast("bytes | None", encrypted.getpeercert(binary_form=True))

    @property
    def in_flight_count(self) -> int:
        return len(self._waiting)

    def version_for(self, request: Message, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the version in which `send` sends the request. Raises UnsupportedApiError."""
        return choose_version(
            self.served.versions, self.address, api_key_of(request), at_least=at_least, at_most=at_most
        )

    def send(self, request: Message, version: int, timeout_s: float) -> asyncio.Future[Reply]:
        """Writes a request after all earlier ones. The future gets the response, or a ClientError."""
        self._correlation_id += 1
        self._write(request, version)
        reply: asyncio.Future[Reply] = self._loop.create_future()
        if self._failure is not None:
            reply.set_exception(self._failure)
            return reply
        now_s = self._loop.time()
        self.last_used_s = now_s
        deadline_s = now_s + timeout_s
        self._waiting.append(_Waiting(self._correlation_id, timeout_s, deadline_s, reply))
        if self._timer is None or self._timer.when() > deadline_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._check_deadline)
        return reply

    def send_unanswered(self, request: Message, version: int) -> None:
        """Writes a request that has no response, as a produce with acks=0. Raises ClientError."""
        self._correlation_id += 1
        self._write(request, version)
        if self._failure is not None:
            raise self._failure
        self.last_used_s = self._loop.time()

    async def call(
        self, request: Message, timeout_s: float, *, at_least: int = 0, at_most: int | None = None
    ) -> Any:  # of its API
        """Sends a request and returns the response. Raises ClientError."""
        version = self.version_for(request, at_least=at_least, at_most=at_most)
        reply = await self.send(request, version, timeout_s)
        return self.decode(request, version, reply)

    def decode(self, request: Message, version: int, reply: Reply) -> Any:  # of its API
        try:
            return decode_answer(self.address, api_key_of(request), version, reply)
        except NotKafkaError as error:
            self._fail(error)
            raise

    @property
    def must_renew_login(self) -> bool:
        """Whether the session ends soon (KIP-368), or the login is being renewed.

        Kafka's brokers close a connection on which a request comes between the steps of SASL.
        """
        return self._renewal.locked() or self._ends_soon

    @property
    def _ends_soon(self) -> bool:
        return self._renew_at_s is not None and self._loop.time() >= self._renew_at_s

    async def renew_login(self, timeout_s: float) -> None:
        """Authenticates again if the session ends soon. Requests are answered before, or wait until the end.

        Raises ClientError. The connection is closed then.
        """
        if not self.must_renew_login:
            return
        async with self._renewal:
            while self._waiting:
                self._answered_all.clear()
                await self._answered_all.wait()
            if not self._ends_soon:
                return
            try:
                self._renew_at_s = None
                await self._authenticate(timeout_s)
            except BaseException:  # after a cancellation, too, the broker waits for the next step of SASL
                self.close()
                raise

    def close(self) -> None:
        self._fail(ConnectionLostError(f"the connection to {self.address} was closed"))

    async def _connect(self, deadline_s: float) -> None:
        """Raises UnreachableError, NotTrustedError, ConnectionLostError, and TimeoutError if the handshake
        lasts too long.
        """
        tls = self._security.tls
        try:
            async with asyncio.timeout_at(deadline_s):
                connected = await _connected(self.address)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA can't encode
            raise UnreachableError(f"no connection to {self.address}: {_reason(error)}") from error
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._loop.create_connection(
                    lambda: self,
                    sock=connected,
                    ssl=tls,
                    server_hostname=self.address.host if tls is not None else None,
                )
        except ssl.SSLCertVerificationError as error:
            raise NotTrustedError(
                f"the certificate of {self.address} is not trusted: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise NotTrustedError(
                f"the TLS handshake with {self.address} failed: {error.reason or error}"
            ) from error
        except ConnectionError as error:
            raise ConnectionLostError(
                f"the broker {self.address} closed the connection during the TLS handshake"
            ) from error

    async def _ask_versions(self, timeout_s: float) -> Served:
        """Requests the broker's versions.

        A broker that does not know our version of ApiVersions answers in version 0 (KIP-511). Raises
        NotKafkaError, UnsupportedApiError.
        """
        request = ApiVersionsRequest(CLIENT_SOFTWARE_NAME, CLIENT_SOFTWARE_VERSION)
        version = api_spec(ApiKey.API_VERSIONS).max_version
        while True:
            reply = await self.send(request, version, timeout_s)
            if len(reply.frame) < _CORRELATION_ID.size + _ERROR_CODE.size:
                raise NotKafkaError(f"the answer of {self.address} is too short for a Kafka broker")
            (code,) = _ERROR_CODE.unpack_from(reply.frame, _CORRELATION_ID.size)
            is_refused = code == ErrorCode.UNSUPPORTED_VERSION
            message: ApiVersionsResponse = self.decode(request, 0 if is_refused else version, reply)
            if not is_refused:
                break
            if version == 0:
                raise UnsupportedApiError(f"the broker at {self.address} serves no version of ApiVersions")
            known = [row.max_version for row in message.api_keys if row.api_key == ApiKey.API_VERSIONS]
            version = min(version - 1, *known) if known else 0
        if message.error_code:
            raise NotKafkaError(f"{self.address} answered ApiVersions with error {message.error_code}")
        return Served(
            {row.api_key: VersionRange(row.min_version, row.max_version) for row in message.api_keys},
            {row.name: row.max_version_level for row in message.finalized_features},
        )

    async def _authenticate(self, timeout_s: float) -> None:
        """Logs in. Raises AuthenticationFailedError and other ClientErrors."""
        login = self._security.login
        if login is None:
            return
        try:
            # This may request a token from an identity provider.
            tokens = await asyncio.to_thread(login.tokens, secrets.token_urlsafe(NONCE_BYTES))
            lifetime_ms = await self._log_in(login, tokens, timeout_s)
        except AuthenticationError as error:
            raise AuthenticationFailedError(f"the login at {self.address} failed: {error}") from error
        if lifetime_ms > 0:
            self._renew_at_s = self._loop.time() + RENEWED_AT * lifetime_ms / 1000

    async def _log_in(self, login: ClientLogin, tokens: ClientTokens, timeout_s: float) -> int:
        """Returns the lifetime of the session in milliseconds, 0 if it is unlimited. Raises
        AuthenticationFailedError, AuthenticationError.
        """
        request = SaslHandshakeRequest(login.mechanism)
        chosen: SaslHandshakeResponse = await self.call(request, timeout_s, at_least=1)
        if chosen.error_code:
            raise MechanismRefusedError(
                f"{self.address} does not accept the SASL mechanism {login.mechanism}; "
                f"it accepts {', '.join(chosen.mechanisms) or 'none'}"
            )
        lifetime_ms = 0
        token: bytes | None = tokens.first()
        while token is not None:
            answer: SaslAuthenticateResponse = await self.call(SaslAuthenticateRequest(token), timeout_s)
            if answer.error_code:
                reason = answer.error_message or f"error {answer.error_code}"
                raise AuthenticationFailedError(f"{self.address} refuses the login of {login.user}: {reason}")
            lifetime_ms = answer.session_lifetime_ms
            token = tokens.reply(bytes(answer.auth_bytes))
        return lifetime_ms

    def _write(self, request: Message, version: int) -> None:
        if self._transport is None or self._failure is not None:
            return
        api_key = api_key_of(request)
        chunks = [encode_request_header(api_key, version, self._correlation_id, self._client_id)]
        chunks += request_encoder(api_key, version)(request)
        self._transport.writelines([_LENGTH.pack(sum(map(len, chunks))), *chunks])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]  # uvloop's class is not asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(
            ConnectionLostError(
                f"the broker at {self.address} closed the connection"
                if error is None
                else f"the connection to {self.address} was lost: {_reason(error)}"
            )
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._frame is not None:
            self._frame_filled += count
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._received(memoryview(frame))
            return
        self._filled += count
        position = 0
        while self._filled - position >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._buffer, position)[0]
            if not _CORRELATION_ID.size <= length <= MAX_RESPONSE_BYTES:
                self._fail(
                    NotKafkaError(
                        f"{self.address} does not speak Kafka's protocol over {self._security.protocol}: "
                        "check the port, and whether it requires TLS (security.protocol)"
                    )
                )
                return
            start = position + _LENGTH.size
            available = self._filled - start
            frame = bytearray(length)
            if available < length:
                frame[:available] = memoryview(self._buffer)[start : self._filled]
                self._frame, self._frame_filled = frame, available
                position = self._filled
                break
            frame[:] = memoryview(self._buffer)[start : start + length]
            position = start + length
            self._received(memoryview(frame))
        rest = self._filled - position
        if rest and position:
            self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest

    def eof_received(self) -> bool:
        return False

    def _received(self, frame: memoryview) -> None:
        if not self._waiting:
            self._fail(NotKafkaError(f"{self.address} sent a response without a request"))
            return
        waiting = self._waiting.popleft()
        if not waiting.reply.done():
            waiting.reply.set_result(Reply(waiting.correlation_id, frame))
        if not self._waiting:
            self._answered_all.set()
        self.last_used_s = self._loop.time()

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        first = min(self._waiting, key=lambda waiting: waiting.deadline_s)
        if self._loop.time() < first.deadline_s:
            self._timer = self._loop.call_at(first.deadline_s, self._check_deadline)
            return
        self._fail(NoAnswerError(f"no answer from {self.address} in {first.timeout_s:g} s"))

    def _fail(self, error: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.reply.done():
                waiting.reply.set_exception(error)
        self._answered_all.set()


async def answer_of(connection: AsyncConnection, call: Call[T], timeout_s: float) -> T:
    """Sends a request and returns what the response means. Raises KafkaError, ClientError."""
    answer = await connection.call(call.request, timeout_s, at_least=call.at_least, at_most=call.at_most)
    return call.read(answer)


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


async def _connected(address: Address) -> socket.socket:
    """Returns a TCP connection to the first address of the host that accepts it. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, place in await _looked_up(address):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, place)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure or OSError("the host has no address")


async def _looked_up(address: Address) -> list[Any]:  # the tuples of socket.getaddrinfo
    """Looks up a host, and tries again for a while if the name server is busy. Raises OSError."""
    with contextlib.suppress(socket.gaierror):  # an IP address needs no thread; at exit, none starts any more
        return socket.getaddrinfo(*address, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + LOOK_UP_AGAIN_FOR_S
    while True:
        try:
            return await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN or loop.time() > give_up_s:
                raise
        await asyncio.sleep(LOOK_UP_BACKOFF_S)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, socket.gaierror):
        is_silent = error.errno == socket.EAI_AGAIN
        return "the name server does not answer" if is_silent else "the host name is unknown"
    text = str(error)
    if isinstance(error, ssl.SSLError):
        text = error.reason or text
    elif isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)  # asyncio writes sentences of its own
    return text[:1].lower() + text[1:]
