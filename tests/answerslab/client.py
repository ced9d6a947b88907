"""One connection to a broker, for requests that may be malformed and responses that may not come."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

from tidelog.wire import codec
from tidelog.wire.headers import decode_response_header, encode_request_header

TIMEOUT_S = 8
CLOSED = "closed"
NO_ANSWER = "no answer"
CLIENT_ID = "answers"


class Client:
    """Connects from one address of this machine, again after each connection that the broker closes."""

    def __init__(self, bootstrap: str, host: str) -> None:
        address, port = bootstrap.rsplit(":", 1)
        self._address = (address, int(port))
        self._host = host
        self._socket: socket.socket | None = None

    def call(self, request: Any, version: int) -> Any:
        """Returns the response. Raises ConnectionError and TimeoutError."""
        api_key = request.API_KEY
        body = b"".join(map(bytes, codec.request_encoder(api_key, version)(request)))
        answer = self.ask(api_key, version, body)
        _, position = decode_response_header(answer, 0, api_key, version)
        return codec.response_decoder(api_key, version)(answer, position)[0]

    def ask(self, api_key: int, version: int, body: bytes, header: bytes | None = None) -> bytes:
        """Sends a request whose body is given, and returns the response with its header."""
        if header is None:
            header = encode_request_header(api_key, version, 1, CLIENT_ID)
        frame = header + body
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, TIMEOUT_S, (self._host, 0))
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            return self._read(*struct.unpack(">i", self._read(4)))
        except OSError:
            self.close()
            raise

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed by the broker")
            data += part
        return bytes(data)

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
