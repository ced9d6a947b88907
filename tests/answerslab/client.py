"""One connection to a broker, for requests that may be malformed and responses that may not come."""

from __future__ import annotations

from typing import Any

from brokerlab.raw_client import PayloadClient
from tidelog.wire import codec
from tidelog.wire.headers import decode_response_header, encode_request_header

TIMEOUT_S = 8
CLOSED = "closed"
NO_ANSWER = "no answer"
CLIENT_ID = "answers"


class Client:
    """Connects from one address of this machine, again after each connection that the broker closes."""

    def __init__(self, bootstrap: str, host: str) -> None:
        self._payloads = PayloadClient(bootstrap, TIMEOUT_S, host)

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
        return self._payloads.ask(header + body)

    def close(self) -> None:
        self._payloads.close()
