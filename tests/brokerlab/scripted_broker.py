"""A broker whose answers the test sets, with one thread per connection, for tests of clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tidelog.wire.api_keys import API_SPECS, ApiKey
from tidelog.wire.codec import request_decoder, response_encoder
from tidelog.wire.headers import SIZE_BYTES, decode_request_header, response_begin
from tidelog.wire.malformed import MalformedMessageError, UnsupportedVersionError
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

Answer = Callable[[Any, int], Any]
"""Called with a request and its version. Returns the response, bytes to send unchanged, or None to close the
connection.
"""


def served_apis() -> list[ApiVersion]:
    return [ApiVersion(key, spec.min_version, spec.max_version) for key, spec in API_SPECS.items()]


class ScriptedBroker:
    """A broker with `answers` by API key. By default, ApiVersions names all APIs that Kafka serves."""

    def __init__(self, answers: Mapping[int, Answer]) -> None:
        self.answers = {ApiKey.API_VERSIONS: self._api_versions, **answers}
        self.requests: list[Any] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def requests_of(self, message: type[Any]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, message)]

    def _api_versions(self, request: Any, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(0, served_apis())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with (
            contextlib.suppress(ConnectionError, MalformedMessageError, UnsupportedVersionError),
            connection,
            connection.makefile("rb") as stream,
        ):
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", head)[0])
                key, version, correlation_id, _, body = decode_request_header(frame, 0)
                request, _ = request_decoder(key, version)(frame, body)
                self.requests.append(request)
                answer = self.answers[ApiKey(key)](request, version)
                if answer is None:
                    return
                if not isinstance(answer, bytes):
                    chunks = response_encoder(key, version)(answer)
                    body = b"".join(chunks)
                    begin = response_begin(key, version)
                    answer = begin.pack(begin.size - SIZE_BYTES + len(body), correlation_id) + body
                connection.sendall(answer)
