"""The bytes of one encrypted connection: OpenSSL between the frames and the outbox of `socket_io.py` and the
socket.

`TlsSession` encrypts and decrypts, without asyncio's transports, and `TlsOutbox` sends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from tidelog.broker.log.segment import FileRange
from tidelog.broker.net.socket_io import SENDFILE_BYTES_PER_TURN, Outbox

TLS_PIECE_BYTES: Final = 128 * 1024
"""The most bytes that one call encrypts, and about the most encrypted bytes that wait for the socket."""
TLS_RECEIVE_BYTES: Final = 64 * 1024
"""The most encrypted bytes that one system call receives. A connection keeps about as much memory."""


class TlsSession:
    """The TLS of one connection: OpenSSL between two buffers in memory, and the socket.

    An `ssl.SSLSocket` needs two system calls for each record that it reads, and clients such as librdkafka
    send records of 1 KiB. Here, one call receives up to TLS_RECEIVE_BYTES (ADR 0042).
    """

    __slots__ = ("_ciphertext", "_incoming", "_outgoing", "_read", "ended", "socket", "tls")

    def __init__(
        self, context: ssl.SSLContext, connection: socket.socket, *, server_hostname: str | None = None
    ) -> None:
        """`server_hostname` is the name that the peer's certificate must have; None means that the peer is
        the client.
        """
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._read: Any = self.tls.read  # Any: with a buffer it returns an int, which typeshed does not know
        self._ciphertext: bytes | memoryview = b""
        self.socket = connection
        self.ended: OSError | None = None
        """Why nothing more can be read."""

    @property
    def has_received(self) -> bool:
        """Whether bytes have been received that `read_into` has not returned."""
        return self._incoming.pending > 0 or self.tls.pending() > 0

    @property
    def undecrypted_bytes(self) -> int:
        """The bytes that have been received and that `read_into` has not returned, encrypted or not."""
        return self._incoming.pending + self.tls.pending()

    @property
    def unsent_bytes(self) -> int:
        """The encrypted bytes that the socket has not accepted yet."""
        return len(self._ciphertext) + self._outgoing.pending

    def receive(self) -> int:
        """Receives once from the socket. Returns the number of encrypted bytes, which is 0 if there are none,
        and sets `ended` at the end of the stream.
        """
        try:
            data = self.socket.recv(TLS_RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.ended = error
            return 0
        if not data:
            self.ended = ConnectionResetError("the peer closed the connection")
            return 0
        self._incoming.write(data)
        return len(data)

    def read_into(self, buffer: memoryview) -> int:
        """Decrypts received bytes into the buffer and returns their number. Sets `ended` at the end of the
        session. Fewer bytes than the buffer has mean that no whole record is left.
        """
        read, incoming = self._read, self._incoming
        filled, size = 0, len(buffer)
        try:
            while filled < size:
                count: int = read(size - filled, buffer[filled:])
                if not count:
                    self.ended = ConnectionResetError("the peer closed the connection")
                    break
                filled += count
                if not incoming.pending:  # spares the exception at the end of most requests
                    break
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self.ended = error
        return filled

    def encrypt(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypts bytes for the next `flush`."""
        self.tls.write(data)

    def flush(self) -> None:
        """Sends the encrypted bytes. Raises BlockingIOError if the socket does not accept all of them."""
        while True:
            if not self._ciphertext:
                self._ciphertext = self._outgoing.read()
                if not self._ciphertext:
                    return
            sent = os.write(self.socket.fileno(), self._ciphertext)
            self._ciphertext = memoryview(self._ciphertext)[sent:] if sent < len(self._ciphertext) else b""

    def close(self, *, ends_cleanly: bool) -> None:
        """Closes the socket. A clean end first sends the alert that ends the session, if it can be sent at
        once. The peer's own alert is not awaited.
        """
        with suppress(OSError, ValueError):
            if ends_cleanly:
                with suppress(ssl.SSLError):
                    self.tls.unwrap()
            self.flush()
        self.socket.close()


class TlsOutbox(Outbox):
    """The outbox of an encrypted connection. OpenSSL encrypts the bytes, so ranges of files are read first.

    What is encrypted has to leave before more is encrypted, except for a few small chunks that leave
    together.
    """

    __slots__ = ("_encrypted_bytes", "_session")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        session: TlsSession,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        super().__init__(loop, session.socket.fileno(), on_drained, on_error)
        self._session = session
        self._encrypted_bytes = 0
        """The part of `waiting_bytes` that is encrypted."""

    def _send_bytes(self, data: bytes) -> None:
        self._chunks.append(data)
        self.waiting_bytes += len(data)
        if not self._watching and not self._reading_ahead:
            self._pump()

    def _pump(self) -> None:
        budget, waited_bytes, session = SENDFILE_BYTES_PER_TURN, self.waiting_bytes, self._session
        is_cold = False
        try:
            session.flush()
            while self._chunks and budget > 0 and not is_cold:
                encrypted = 0
                while self._chunks and encrypted < TLS_PIECE_BYTES:
                    head = self._chunks[0]
                    if isinstance(head, FileRange):
                        is_cold = self._is_cold(head)
                        if is_cold:
                            break
                        piece: bytes | bytearray | memoryview = self._read_piece(head)
                    else:
                        piece = self._take_piece(head)
                    if len(piece):
                        session.encrypt(piece)
                        encrypted += len(piece)
                self.waiting_bytes -= encrypted
                budget -= encrypted
                session.flush()
        except BlockingIOError:
            pass
        except OSError as error:
            self._on_error(error)
            return
        unsent = session.unsent_bytes
        self.waiting_bytes += unsent - self._encrypted_bytes
        self._encrypted_bytes = unsent
        if unsent or (self._chunks and not is_cold):
            if self.waiting_bytes != waited_bytes:
                self.last_progress = monotonic()
            self._watch()
        elif is_cold:
            head = self._chunks[0]
            assert isinstance(head, FileRange)
            self._read_ahead(head)
        else:
            self._stop_watching()
            self._on_drained()

    def _take_piece(self, head: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        if len(head) <= TLS_PIECE_BYTES:
            self._chunks.popleft()
            return head
        rest = memoryview(head)
        self._chunks[0] = rest[TLS_PIECE_BYTES:]
        return rest[:TLS_PIECE_BYTES]

    def _read_piece(self, head: FileRange) -> bytes:
        """Takes the next bytes of a file range, which are in the page cache."""
        length = min(head.length, self._probed_to - head.position, TLS_PIECE_BYTES)
        piece = os.pread(head.fileno(), length, head.position)
        if not piece:  # the file is shorter than the response promised, which cannot be completed
            raise OSError(f"segment ended {head.length} bytes early")
        head.position += len(piece)
        head.length -= len(piece)
        if not head.length:
            self._chunks.popleft()
            head.release()
            self._probed_to = 0
        return piece
