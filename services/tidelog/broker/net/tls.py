"""TLS of the broker's listeners: certificates, the handshake, and reading from an encrypted socket.

`TlsAcceptor` accepts sockets and completes their handshakes in threads, because one handshake takes
milliseconds of CPU. `TlsTransport` then stands in for asyncio's transport, with a `TlsSession`, and a
`TlsOutbox` sends (`tls_socket.py`).

The files are read again when they change, at the next handshake. If the new ones are not valid, the earlier
ones stay in use.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidelog.broker.net.connection import CLIENT_LOG
from tidelog.broker.net.tls_socket import TLS_RECEIVE_BYTES, TlsSession
from tidelog.model.acl import ANONYMOUS, Principal
from tidelog.settings.tls_settings import ANY_STORE, TlsPlan, principal_of

if TYPE_CHECKING:
    from tidelog.broker.net.connection import Connection
    from tidelog.broker.net.socket_protocol import Receiver

MAX_HANDSHAKES: Final = 256
"""The handshakes of one listener that may be in progress. One more ends the oldest."""
MAX_HANDSHAKES_PER_ADDRESS: Final = 64
"""The handshakes of one address that may be in progress. One more ends the oldest of that address."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
ACCEPTS_PER_TURN: Final = 64
ACCEPT_PAUSE_S: Final = 0.1
"""The pause after an accept that failed, for example because the process has no free file descriptor."""
READS_PER_TURN: Final = 4
"""The times that one connection receives before the event loop serves the other connections."""
LEAST_AWAITED_BYTES: Final = 2 * 1024
"""If fewer bytes of a frame are missing, a call to the kernel would cost more than it spares."""
AWAITED_PART: Final = 8
"""The kernel holds back at most this part of the receive buffer, one eighth. With much more, the window may
be too small for the client's next segment, and neither side would continue.
"""
MOST_HELD_S: Final = 0.1
"""The longest time for which the kernel may hold back bytes of a connection until more arrive (SO_RCVLOWAT).
After that, the kernel reports all bytes of this connection at once.
"""
RESET_CHECK_S: Final = 1.0
"""A connection that has been silent for this time is read once more, because libuv may have stopped watching
it.
"""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""The most encrypted bytes that may wait for the socket when the peer sends more."""
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# The short names in which Java writes a distinguished name (RFC 2253). Other attributes keep OpenSSL's names.
_RFC2253: Final = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED: Final = str.maketrans({character: f"\\{character}" for character in ',+"\\<>;'})

_log = structlog.get_logger(__name__)
_Signature = tuple[tuple[int, int, int], ...]


class TlsFileError(OSError):
    """A key or certificate cannot be used. The message is one sentence that names it."""


class UnknownSubjectError(ValueError):
    """No rule gives the subject of a client's certificate a name. Kafka refuses such a client, too."""


def server_context(plan: TlsPlan) -> ssl.SSLContext:
    """Returns the context of a listener. Raises TlsFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = min(_VERSIONS[version] for version in plan.versions)
    context.maximum_version = max(_VERSIONS[version] for version in plan.versions)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _CLIENT_AUTH[plan.client_auth]
    if plan.ciphers:
        try:
            context.set_ciphers(":".join(plan.ciphers))
        except ssl.SSLError as error:
            raise TlsFileError(
                f"ssl.cipher.suites: OpenSSL knows none of {', '.join(plan.ciphers)}"
            ) from error
    _load_identity(context, plan)
    _load_authorities(context, plan)
    return context


def client_context(plan: TlsPlan) -> ssl.SSLContext:
    """Returns the context with which this broker connects to other brokers' listener of the same name. Their
    certificates must be signed by an authority of the truststore and name the address. Raises TlsFileError.
    """
    if not (plan.truststore_location or plan.truststore_certificates):
        raise TlsFileError(
            "ssl.truststore.location: brokers use TLS among themselves, so this must name a file with the "
            "certificates of the authority that signs the brokers' certificates"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = min(_VERSIONS[version] for version in plan.versions)
    context.maximum_version = max(_VERSIONS[version] for version in plan.versions)
    _load_identity(context, plan)
    _load_authorities(context, plan)
    return context


def _load_identity(context: ssl.SSLContext, plan: TlsPlan) -> None:
    password = plan.key_password
    if plan.keystore_location is None:
        name, pem = "ssl.keystore.key", f"{plan.key}\n{plan.certificate_chain}".encode()
    else:
        name = f"ssl.keystore.location: {plan.keystore_location}"
        pem = _read(name, plan.keystore_location)
        if not _is_pem(name, pem, plan.keystore_type):
            pem, password = _pem_of_pkcs12(name, pem, plan.keystore_password), None
    # OpenSSL reads keys only from files. This one is in memory, and only this process can open it.
    descriptor = os.memfd_create("tidelog-tls")
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password or "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise TlsFileError(f"{name}: the key and its certificates cannot be used: {reason}") from error
    finally:
        os.close(descriptor)


def _load_authorities(context: ssl.SSLContext, plan: TlsPlan) -> None:
    if plan.truststore_location is not None:
        name = f"ssl.truststore.location: {plan.truststore_location}"
        pem = _read(name, plan.truststore_location)
        if not _is_pem(name, pem, plan.truststore_type):
            pem = _pem_of_pkcs12(name, pem, plan.truststore_password)
    elif plan.truststore_certificates is not None:
        name, pem = "ssl.truststore.certificates", plan.truststore_certificates.encode()
    else:
        return
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise TlsFileError(f"{name}: this contains no certificates") from error


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsFileError(f"{name}: {error.strerror}") from error


def _is_pem(name: str, data: bytes, store_type: str) -> bool:
    """Returns whether the data is PEM, and False for PKCS12. Raises TlsFileError if it is not of the type."""
    if data.startswith(_JKS_MAGIC):
        raise TlsFileError(
            f"{name}: JKS is not supported; convert it with keytool -importkeystore -deststoretype PKCS12"
        )
    is_pem = b"-----BEGIN" in data
    if store_type not in (ANY_STORE, "PEM" if is_pem else "PKCS12"):
        raise TlsFileError(f"{name}: the file is not {store_type}, as its type setting says")
    return is_pem


def _pem_of_pkcs12(name: str, data: bytes, password: str | None) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError as error:
        raise TlsFileError(f"{name}: this is neither PEM nor PKCS12 with this password") from error
    parts = []
    if store.key is not None:
        parts.append(store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    found = [store.cert] if store.cert is not None else []
    found += store.additional_certs
    parts += [entry.certificate.public_bytes(Encoding.PEM) for entry in found]
    return b"".join(parts)


class ServerCertificates:
    """The TLS context of one listener, made again when the files of its plan change."""

    def __init__(self, plan: TlsPlan) -> None:
        """Raises TlsFileError if the files cannot be used."""
        self.plan = plan
        self._signature = self._file_signature()
        self._context = server_context(plan)

    def replace(self, plan: TlsPlan) -> None:
        """Uses a changed plan. Raises TlsFileError, and keeps the old plan then."""
        context = server_context(plan)
        self.plan, self._context, self._signature = plan, context, self._file_signature()

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection."""
        signature = self._file_signature()
        if signature != self._signature:
            self._signature = signature
            try:
                self._context = server_context(self.plan)
                _log.info("uses renewed certificates", keystore=self.plan.keystore_location)
            except TlsFileError as error:
                _log.error(
                    "keeps the earlier certificates, because the new ones are not valid", reason=str(error)
                )
        return self._context

    def _file_signature(self) -> _Signature:
        found = []
        for path in filter(None, (self.plan.keystore_location, self.plan.truststore_location)):
            with suppress(OSError):
                stat = Path(path).stat()
                found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def principal(self, connection: ssl.SSLObject) -> Principal:
        """Returns the principal of the client's certificate, which is ANONYMOUS if it has shown none. Raises
        UnknownSubjectError if no rule of `ssl.principal.mapping.rules` applies.
        """
        certificate = connection.getpeercert()
        if not certificate:
            return ANONYMOUS
        subject = distinguished_name(certificate)
        principal = principal_of(subject, self.plan.rules)
        if principal is None:
            raise UnknownSubjectError(f"no rule of ssl.principal.mapping.rules applies to {subject}")
        return principal


def distinguished_name(certificate: dict[str, Any]) -> str:  # Any: the type that typeshed gives it
    """Returns the subject as Java's X500Principal writes it: RFC 2253, the last attribute first."""
    names = [
        "+".join(f"{_RFC2253.get(name, name)}={value.translate(_ESCAPED)}" for name, value in attributes)
        for attributes in reversed(certificate.get("subject", ()))
    ]
    return ",".join(names)


async def shake_hands(loop: asyncio.AbstractEventLoop, session: TlsSession, threads: Executor | None) -> None:
    """Completes the handshake. The cryptography runs in `threads`. Raises OSError."""
    while True:
        step = loop.run_in_executor(threads, session.tls.do_handshake)
        is_complete = True
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])  # the thread still uses the session
            raise
        except ssl.SSLWantReadError:
            is_complete = False
        except ssl.SSLError:
            with suppress(OSError):
                session.flush()  # the alert that tells the peer the reason
            raise
        await _flush(loop, session)
        if is_complete:
            return
        while not session.receive():
            if session.ended is not None:
                raise session.ended
            await _ready(loop, session.socket.fileno(), loop.add_reader, loop.remove_reader)


async def _flush(loop: asyncio.AbstractEventLoop, session: TlsSession) -> None:
    while True:
        try:
            session.flush()
            return
        except BlockingIOError:
            await _ready(loop, session.socket.fileno(), loop.add_writer, loop.remove_writer)


async def _ready(
    loop: asyncio.AbstractEventLoop,
    fileno: int,
    add: Callable[..., None],
    remove: Callable[[int], object],
) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fileno, wake)
    try:
        await ready
    finally:
        remove(fileno)


class TlsTransport(asyncio.Transport):
    """Reads from an encrypted socket in place of asyncio's transport. The outbox writes to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: TlsSession, peername: Any) -> None:
        super().__init__()
        self._loop = loop
        self._session = session
        self._peername = peername
        self._receiver: Receiver | None = None
        self._is_reading = False
        self._is_closed = False
        self._awaited_bytes = 1
        """The bytes that have to arrive before the kernel reports that the socket can be read."""
        buffer_bytes = session.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        self._most_awaited_bytes = min(buffer_bytes // AWAITED_PART, TLS_RECEIVE_BYTES)
        self._reads = 0
        self._check: asyncio.TimerHandle | None = None
        self._reset_check: asyncio.TimerHandle | None = None

    def begin(self, receiver: Receiver) -> None:
        """Hands the connection to its receiver and starts to read."""
        self._receiver = receiver
        receiver.connection_made(self)
        if not self._is_closed:
            self.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # Any: as in asyncio
        known = {"peername": self._peername, "socket": self._session.socket, "tls_session": self._session}
        return known.get(name, default)

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._session.socket.fileno())

    def resume_reading(self) -> None:
        if self._is_reading or self._is_closed:
            return
        self._is_reading = True
        self._loop.add_reader(self._session.socket.fileno(), self._read)
        session = self._session
        if session.has_received or session.ended is not None:  # the socket does not report these any more
            self._loop.call_soon(self._read)

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _read(self) -> None:
        session = self._session
        # libuv stops watching a socket with an error, so nothing would report the error after the bytes that
        # the kernel held back. Therefore those are read to their end.
        is_held = self._awaited_bytes > 1
        has_received = False
        self._reads += 1
        for _ in range(READS_PER_TURN):
            if not self._is_reading:
                break
            received = session.receive()
            has_received = has_received or received > 0
            self._decrypt()
            self._answer()
            if session.ended is not None and self._is_reading:
                self._end(session.ended)
            if received < TLS_RECEIVE_BYTES and not (is_held and received):
                break
        if not self._is_closed:
            self._await_frame()
            if has_received and self._reset_check is None:
                self._reset_check = self._loop.call_later(RESET_CHECK_S, self._check_reset, self._reads)

    def _await_frame(self) -> None:
        """Tells the kernel how many bytes the frame that has begun to arrive still needs at least, so that it
        does not report each of the client's records. Clients such as librdkafka send one for each message.

        What is encrypted is never shorter than its content, so the frame cannot end with fewer bytes. The
        kernel also reports the end of the stream, and a full buffer.
        """
        receiver = self._receiver
        assert receiver is not None
        awaited = 1
        missing = receiver.missing_bytes()
        if missing >= LEAST_AWAITED_BYTES:
            missing = min(missing - self._session.undecrypted_bytes, self._most_awaited_bytes)
            if missing >= LEAST_AWAITED_BYTES:
                awaited = missing
        if awaited != self._awaited_bytes:
            self._await(awaited)
        if awaited > 1 and self._check is None:
            self._check = self._loop.call_later(MOST_HELD_S, self._check_held, self._reads)

    def _await(self, awaited_bytes: int) -> None:
        self._awaited_bytes = awaited_bytes
        with suppress(OSError):  # the connection has just broken, which the next read reports
            self._session.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited_bytes)

    def _check_held(self, reads: int) -> None:
        """Ends the waiting for more bytes if there was no read for MOST_HELD_S."""
        self._check = None
        if self._awaited_bytes == 1:
            return
        if self._reads == reads and self._is_reading:
            self._most_awaited_bytes = 1
            self._read()
        else:
            self._check = self._loop.call_later(MOST_HELD_S, self._check_held, self._reads)

    def _check_reset(self, reads: int) -> None:
        """Reads once more if there was no read for RESET_CHECK_S. libuv reports a reset that arrives together
        with bytes only with them, and the read of these bytes does not see it.
        """
        self._reset_check = None
        if not self._is_reading:
            return  # the socket is watched anew when reading goes on
        if self._reads == reads:
            self._read()
        else:
            self._reset_check = self._loop.call_later(RESET_CHECK_S, self._check_reset, self._reads)

    def _decrypt(self) -> None:
        """Hands on what has been received, until the receiver pauses."""
        receiver, session = self._receiver, self._session
        assert receiver is not None
        while self._is_reading:
            buffer = receiver.get_buffer(-1)
            filled = session.read_into(buffer)
            if filled:
                receiver.buffer_updated(filled)
            if filled < len(buffer):
                return

    def _answer(self) -> None:
        """Sends the bytes that OpenSSL writes by itself, such as the refusal of a renegotiation. Ends the
        session if its peer causes such bytes and does not read them.
        """
        session = self._session
        if session.ended is not None or not session.unsent_bytes:
            return
        try:
            session.flush()
        except BlockingIOError:
            if session.unsent_bytes > MAX_UNSENT_BYTES:
                session.ended = ConnectionResetError("the peer does not read")
        except OSError as error:
            session.ended = error

    def _end(self, error: Exception | None) -> None:
        if self._is_closed:
            return
        self.pause_reading()
        self._is_closed = True
        for check in (self._check, self._reset_check):
            if check is not None:
                check.cancel()
        self._session.close(ends_cleanly=error is None)
        if self._receiver is not None:
            self._loop.call_soon(self._receiver.connection_lost, error)


class TlsAcceptor:
    """Accepts the connections of one listener and completes their handshakes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        certificates: ServerCertificates,
        handshakes: Executor,
        new_connection: Callable[[], Connection],
        login_ended: Callable[[bool], None],
        *,
        is_authenticating: bool,
    ) -> None:
        """`is_authenticating` means that the client's certificate decides about its principal. `login_ended`
        receives whether a certificate was accepted.
        """
        self._loop = loop
        self._listening = listening
        self._certificates = certificates
        self._handshakes = handshakes
        self._new_connection = new_connection
        self._login_ended = login_ended
        self._is_authenticating = is_authenticating
        self._in_progress: dict[asyncio.Task[None], str] = {}
        """The handshakes with the addresses of their clients, the oldest first."""
        self._is_accepting = False
        self._is_closed = False

    def start(self, backlog: int) -> None:
        """Starts to accept connections."""
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._accept_more()

    def close(self) -> None:
        """Stops accepting and ends the handshakes in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_accepting:
            self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for task in tuple(self._in_progress):
            task.cancel()

    def _accept_more(self) -> None:
        if not self._is_closed and not self._is_accepting:
            self._is_accepting = True
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _stop_accepting(self) -> None:
        self._is_accepting = False
        self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peername = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("a connection cannot be accepted", reason=str(error))
                self._stop_accepting()
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_more)
                return
            accepted.setblocking(False)
            self._make_room(peername[0])
            task = self._loop.create_task(self._serve(accepted, peername))
            self._in_progress[task] = peername[0]
            task.add_done_callback(lambda ended: self._in_progress.pop(ended, None))

    def _make_room(self, host: str) -> None:
        """Ends the oldest handshake if there are too many, first of all with the same address."""
        of_host = [task for task, address in self._in_progress.items() if address == host]
        if len(of_host) >= MAX_HANDSHAKES_PER_ADDRESS:
            oldest = of_host[0]
        elif len(self._in_progress) >= MAX_HANDSHAKES:
            oldest = next(iter(self._in_progress))
        else:
            return
        del self._in_progress[oldest]
        oldest.cancel()

    async def _serve(self, accepted: socket.socket, peername: Any) -> None:
        """Completes the handshake and starts the connection. A client that fails is not worth more than one
        line of the log.
        """
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = TlsSession(self._certificates.context(), accepted)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await shake_hands(self._loop, session, self._handshakes)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "reason", None) or str(error) or "it took too long"
            CLIENT_LOG.info("a TLS handshake failed", peer=f"{peername[0]}:{peername[1]}", reason=reason)
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                self._login_ended(False)  # a probe that only connects is no login
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        connection = self._new_connection()
        if self._is_authenticating:
            try:
                connection.principal = self._certificates.principal(session.tls)
            except UnknownSubjectError as error:
                CLIENT_LOG.info(
                    "a client's certificate is refused",
                    peer=f"{peername[0]}:{peername[1]}",
                    reason=str(error),
                )
                self._login_ended(False)
                accepted.close()
                return
            if connection.principal != ANONYMOUS:
                self._login_ended(True)
        TlsTransport(self._loop, session, peername).begin(connection)
