"""One connection to a broker, with responses in the order of the requests and a deadline for each.

ApiVersions negotiates the versions when the connection is opened. Each call then uses the newest version that
both sides know.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple, TypeVar, cast

from tidelog import __version__
from tidelog.client.address import Address
from tidelog.client.errors import (
    AuthenticationFailedError,
    ClientError,
    ConnectionLostError,
    NoAnswerError,
    NotKafkaError,
    NotTrustedError,
    UnreachableError,
    UnsupportedApiError,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.model.errors import ErrorCode
from tidelog.sasl import AuthenticationError
from tidelog.sasl.login import ClientLogin
from tidelog.wire.api_keys import ApiKey, api_spec
from tidelog.wire.codec import MalformedMessageError, request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.wire.schema import Message

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""The maximum length of a frame. HTTP and TLS alerts, read as lengths, are far longer."""
LOOK_UP_AGAIN_FOR_S: Final = 10.0
LOOK_UP_BACKOFF_S: Final = 0.2
CLIENT_SOFTWARE_NAME: Final = "tidelog"
CLIENT_SOFTWARE_VERSION: Final = __version__
NONCE_BYTES: Final = 24
RENEWED_AT: Final = 0.85
"""The part of a session's lifetime after which the client authenticates again (KIP-368)."""
_LENGTH: Final = struct.Struct(">i")
_ERROR_CODE: Final = struct.Struct(">h")

R = TypeVar("R", bound=Message)


class VersionRange(NamedTuple):
    min_version: int
    max_version: int


class PendingAnswer(NamedTuple):
    """A request whose response has not been read."""

    api_key: int
    api_version: int
    correlation_id: int
    deadline_s: float


class BrokerConnection:
    """A connection, which is not thread-safe. A ClientError of `call`, `send` or `receive` closes it."""

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
        self._security = security
        self._pending_count = 0
        self._renew_at_s: float | None = None
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self.served: dict[int, VersionRange] = {}
        try:
            self._socket = _connected(address, timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA can't encode
            raise UnreachableError(f"no connection to {address}: {_reason(error)}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._closed_on_error():
            if security.tls is not None:
                self._socket = self._encrypted(security.tls)
            self.served = self._ask_versions()
            if security.login is not None:
                self._authenticate(security.login)

    def __enter__(self) -> BrokerConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def version_for(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Returns the newest version within the bounds that both sides know. Raises UnsupportedApiError."""
        spec = api_spec(api_key)
        served = self.served.get(api_key)
        if served is None:
            raise UnsupportedApiError(f"the broker at {self.address} does not serve {spec.name}")
        newest = min(served.max_version, spec.max_version, spec.max_version if at_most is None else at_most)
        oldest = max(served.min_version, spec.min_version, at_least)
        if newest < oldest:
            raise UnsupportedApiError(
                f"the broker at {self.address} serves {spec.name} {served.min_version} to "
                f"{served.max_version}, but this command needs {max(spec.min_version, at_least)} or newer"
            )
        return newest

    def call(
        self,
        request: Message,
        answer: type[R],
        *,
        at_least: int = 0,
        at_most: int | None = None,
        wait_ms: int = 0,
    ) -> R:
        """Sends a request and returns the response. Raises ClientError.

        `wait_ms` is added to the connection's timeout, because the broker may wait that long. The caller has
        to check error codes in the response.
        """
        return self.receive(self.send(request, at_least=at_least, at_most=at_most, wait_ms=wait_ms), answer)

    def send(
        self, request: Message, *, at_least: int = 0, at_most: int | None = None, wait_ms: int = 0
    ) -> PendingAnswer:
        """Sends a request without waiting. `receive` returns the responses in the same order.

        A request with acks=0 has no response.
        """
        api_key: int = request.API_KEY  # type: ignore[attr-defined]  # only requests have one
        version = self.version_for(api_key, at_least=at_least, at_most=at_most)
        with self._closed_on_error():
            login = self._security.login
            if login is not None and self._must_renew():
                self._authenticate(login)
            self._pending_count += 1
            return self._send(request, api_key, version, wait_ms)

    def receive(self, pending: PendingAnswer, answer: type[R]) -> R:
        with self._closed_on_error():
            frame = self._receive_frame(pending)
            message = self._decode(pending, frame, pending.api_version)
        self._pending_count -= 1
        assert isinstance(message, answer)
        return message

    # -- frames

    def _send(self, request: Message, api_key: int, version: int, wait_ms: int) -> PendingAnswer:
        self._correlation_id += 1
        pending = PendingAnswer(
            api_key, version, self._correlation_id, time.monotonic() + self._timeout_s + wait_ms / 1000
        )
        chunks = [encode_request_header(api_key, version, pending.correlation_id, self._client_id)]
        chunks += request_encoder(api_key, version)(request)
        frame = b"".join((_LENGTH.pack(sum(map(len, chunks))), *chunks))
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(error) from error
        return pending

    def _receive_frame(self, pending: PendingAnswer) -> memoryview:
        length = _LENGTH.unpack(self._read(_LENGTH.size, pending.deadline_s))[0]
        if not _LENGTH.size <= length <= MAX_RESPONSE_BYTES:
            raise NotKafkaError(
                f"{self.address} does not speak Kafka's protocol over {self._security.protocol}: check the "
                "port, and whether it requires TLS (--command-config)"
            )
        return self._read(length, pending.deadline_s)

    def _decode(self, pending: PendingAnswer, frame: memoryview, version: int) -> Message:
        try:
            correlation_id, position = decode_response_header(frame, 0, pending.api_key, version)
            message: Message = response_decoder(pending.api_key, version)(frame, position)[0]
        except MalformedMessageError as error:
            raise NotKafkaError(f"the response of {self.address} can't be decoded: {error}") from error
        if correlation_id != pending.correlation_id:
            raise NotKafkaError(
                f"{self.address} answered request {correlation_id} instead of {pending.correlation_id}"
            )
        return message

    def _read(self, size: int, deadline_s: float) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NoAnswerError(f"no answer from {self.address} in {self._timeout_s:g} s")
            try:
                self._socket.settimeout(left_s)
                count = self._socket.recv_into(data[done:])
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise ConnectionLostError(f"the broker at {self.address} closed the connection")
            done += count
        return data

    def _lost(self, error: OSError) -> ClientError:
        if isinstance(error, TimeoutError):
            return NoAnswerError(f"no answer from {self.address} in {self._timeout_s:g} s")
        return ConnectionLostError(f"the connection to {self.address} was lost: {_reason(error)}")

    # -- security

    def _encrypted(self, tls: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            return tls.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            raise NotTrustedError(
                f"the certificate of {self.address} is not trusted: {error.verify_message}"
            ) from error
        except ssl.SSLError as error:
            raise NotTrustedError(
                f"the TLS handshake with {self.address} failed: {error.reason or error}"
            ) from error
        except OSError as error:
            raise self._lost(error) from error

    def _must_renew(self) -> bool:
        """Returns whether the session ends soon and no response is outstanding."""
        return (
            self._renew_at_s is not None and self._pending_count <= 0 and time.monotonic() >= self._renew_at_s
        )

    def _authenticate(self, login: ClientLogin) -> None:
        """Logs in. Raises AuthenticationFailedError."""
        chosen = self._exchange(SaslHandshakeRequest(login.mechanism), SaslHandshakeResponse, at_least=1)
        if chosen.error_code:
            raise AuthenticationFailedError(
                f"{self.address} does not accept the SASL mechanism {login.mechanism}; "
                f"it accepts {', '.join(chosen.mechanisms) or 'none'}"
            )
        lifetime_ms = 0
        try:
            tokens = login.tokens(secrets.token_urlsafe(NONCE_BYTES))
            token: bytes | None = tokens.first()
            while token is not None:
                answer = self._exchange(SaslAuthenticateRequest(token), SaslAuthenticateResponse)
                if answer.error_code:
                    reason = answer.error_message or f"error {answer.error_code}"
                    raise AuthenticationFailedError(
                        f"{self.address} refuses the login of {login.user}: {reason}"
                    )
                lifetime_ms = answer.session_lifetime_ms
                token = tokens.reply(bytes(answer.auth_bytes))
        except AuthenticationError as error:
            raise AuthenticationFailedError(f"the login at {self.address} failed: {error}") from error
        if lifetime_ms > 0:
            self._renew_at_s = time.monotonic() + RENEWED_AT * lifetime_ms / 1000

    def _exchange(self, request: Message, answer: type[R], *, at_least: int = 0) -> R:
        api_key: int = request.API_KEY  # type: ignore[attr-defined]  # only requests have one
        version = self.version_for(api_key, at_least=at_least)
        pending = self._send(request, api_key, version, 0)
        message = self._decode(pending, self._receive_frame(pending), version)
        assert isinstance(message, answer)
        return message

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()  # a partly sent or received frame can't be continued
            raise

    def _ask_versions(self) -> dict[int, VersionRange]:
        """Requests the broker's versions.

        A broker that does not know our version of ApiVersions answers in version 0 (KIP-511).
        """
        request = ApiVersionsRequest(CLIENT_SOFTWARE_NAME, CLIENT_SOFTWARE_VERSION)
        version = api_spec(ApiKey.API_VERSIONS).max_version
        while True:
            pending = self._send(request, ApiKey.API_VERSIONS, version, 0)
            frame = self._receive_frame(pending)
            if len(frame) < _LENGTH.size + _ERROR_CODE.size:
                raise NotKafkaError(f"the answer of {self.address} is too short for a Kafka broker")
            (code,) = _ERROR_CODE.unpack_from(frame, _LENGTH.size)
            refused = code == ErrorCode.UNSUPPORTED_VERSION
            message = cast("ApiVersionsResponse", self._decode(pending, frame, 0 if refused else version))
            if not refused:
                break
            if version == 0:
                raise UnsupportedApiError(f"the broker at {self.address} serves no version of ApiVersions")
            known = [row.max_version for row in message.api_keys if row.api_key == ApiKey.API_VERSIONS]
            version = min(version - 1, *known) if known else 0
        if message.error_code:
            raise NotKafkaError(f"{self.address} answered ApiVersions with error {message.error_code}")
        return {row.api_key: VersionRange(row.min_version, row.max_version) for row in message.api_keys}


def _connected(address: Address, timeout_s: float) -> socket.socket:
    """Connects, and retries for a while if the name server is busy."""
    give_up_s = time.monotonic() + min(timeout_s, LOOK_UP_AGAIN_FOR_S)
    while True:
        try:
            return socket.create_connection(address, timeout_s)
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN or time.monotonic() > give_up_s:
                raise
        time.sleep(LOOK_UP_BACKOFF_S)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it timed out"
    if isinstance(error, socket.gaierror):
        is_silent = error.errno == socket.EAI_AGAIN
        return "the name server does not answer" if is_silent else "the host name is unknown"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
