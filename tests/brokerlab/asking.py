"""Sends requests to a broker without sockets, through the dispatcher's own path up to a fake connection.
Requests may be answered later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from tidelog.broker.net.connection import Connection
from tidelog.broker.parts import BrokerParts
from tidelog.broker.requests.chain import RequestChain
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.request import RequestContext
from tidelog.model.acl import ANONYMOUS, Principal
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header

_SIZE_BYTES = 4
_LISTENER = "PLAINTEXT"


class Asked:
    """One request. `answer` is None until it has been answered."""

    def __init__(
        self,
        broker: BrokerParts,
        request: Any,
        version: int,
        *,
        client_id: str = "test",
        body: bytes | None = None,
        principal: Principal = ANONYMOUS,
    ) -> None:
        """If `body` is given, it is sent instead of the request's own body."""
        self.api_key = ApiKey(request.API_KEY)
        self.version = version
        self.answer: Any = None
        self.body: bytes | None = None
        self.is_closed = False
        self.muted_s = 0.0
        self.refused_because: str | None = None
        self.peer_host = "10.0.0.1"
        self.principal = principal
        self.budget_key = self.peer_host
        self.access: Any = None
        self.authentication = None
        self.gate = None
        self.last_active = 0.0
        self.listener_name = _LISTENER
        self.request_body = body or b"".join(
            map(bytes, codec.request_encoder(self.api_key, version)(request))
        )
        header = encode_request_header(self.api_key, version, 7, client_id)
        self._waiting: RequestContext | None = None
        self._dispatcher = Dispatcher(RequestChain(broker), broker.telemetry, broker.quotas)
        frame = memoryview(bytearray(header + self.request_body))
        self._dispatcher.dispatch(cast(Connection, self), frame)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # -- the interface of a connection

    def wait_for(self, context: RequestContext) -> None:
        self._waiting = context

    def answer_now(self, _context: RequestContext, chunks: Sequence[Any]) -> None:
        assert self.answer is None, "answered twice"
        frame = b"".join(bytes(chunk) for chunk in chunks)[_SIZE_BYTES:]
        _, position = decode_response_header(frame, 0, self.api_key, self.version)
        self.body = frame[position:]
        self.answer, end = codec.response_decoder(self.api_key, self.version)(frame, position)
        assert end == len(frame)

    answer_later = answer_now

    def has_room_for_large_answer(self, frame_bytes: int) -> bool:
        return True

    def mute(self, duration_s: float) -> None:
        self.muted_s = max(self.muted_s, duration_s)

    def start_barrier(self) -> None: ...

    def end_barrier(self) -> None: ...

    def refuse(self, reason: str) -> None:
        self.refused_because = reason

    def close(self) -> None:
        """Simulates that the client closes the connection."""
        self.is_closed = True
        if self._waiting is not None:
            self._waiting.abandon()


async def until(condition: Callable[[], bool]) -> None:
    """Runs some iterations of the loop until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a thread reads real files
            await asyncio.sleep(0.001)
