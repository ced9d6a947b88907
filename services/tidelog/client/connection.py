"""One connection to a broker, with responses in the order of the requests and a deadline for each.

ApiVersions negotiates the versions when the connection is opened. Each call then uses the newest version that
both sides know.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, TypeVar, cast

from tidelog.client.address import Address, explained
from tidelog.client.errors import (
    ClientError,
    ConnectionLostError,
    NoAnswerError,
    NotKafkaError,
    NotTrustedError,
    UnreachableError,
)
from tidelog.client.handshake import (
    RENEWED_AT,
    Reply,
    Steps,
    VersionRange,
    api_key_of,
    ask_versions,
    begin_login,
    choose_version,
    decode_answer,
    log_in,
)
from tidelog.client.security import NO_SECURITY, ClientSecurity
from tidelog.sasl.login import ClientLogin
from tidelog.wire.codec import request_encoder
from tidelog.wire.headers import encode_request_header
from tidelog.wire.schema import Message

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""The maximum length of a frame. HTTP and TLS alerts, read as lengths, are far longer."""
LOOK_UP_AGAIN_FOR_S: Final = 10.0
LOOK_UP_BACKOFF_S: Final = 0.2
_LENGTH: Final = struct.Struct(">i")

R = TypeVar("R", bound=Message)
T = TypeVar("T")


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
        self.served: Mapping[int, VersionRange] = {}
        try:
            self._socket = _connected(address, timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA can't encode
            raise UnreachableError(f"no connection to {address}: {_reason(error)}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._closed_on_error():
            try:
                if security.tls is not None:
                    self._socket = self._encrypted(security.tls)
                self.served = self._run(ask_versions(address)).versions
            except ClientError as error:
                raise explained(error, address, has_tls=security.tls is not None) from error
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

    @property
    def peer_certificate(self) -> bytes | None:
        """The broker's certificate in DER, None if the connection is not encrypted."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return None
        return self._socket.getpeercert(binary_form=True)

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
        api_key = api_key_of(request)
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
            message = decode_answer(
                self.address, pending.api_key, pending.api_version, Reply(pending.correlation_id, frame)
            )
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
        tokens = begin_login(self.address, login)
        lifetime_ms = self._run(log_in(self.address, self.served, login, tokens))
        if lifetime_ms > 0:
            self._renew_at_s = time.monotonic() + RENEWED_AT * lifetime_ms / 1000

    def _run(self, steps: Steps[T]) -> T:
        """Runs steps of the handshake and returns their result."""
        try:
            exchange = next(steps)
            while True:
                pending = self._send(exchange.request, api_key_of(exchange.request), exchange.version, 0)
                exchange = steps.send(Reply(pending.correlation_id, self._receive_frame(pending)))
        except StopIteration as finished:
            return cast("T", finished.value)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()  # a partly sent or received frame can't be continued
            raise


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
