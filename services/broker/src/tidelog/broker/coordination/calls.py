"""Requests that were passed on to a coordinator and are not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.coordination.attachment import Attachment


class Asker(NamedTuple):
    """Who asks, as the coordinator is told."""

    principal: str = "User:ANONYMOUS"
    client_id: str | None = None
    host: str = ""
    traceparent: str = ""


class PassedOnRequest(NamedTuple):
    """`body` is as a client sent it, without header."""

    api_key: int
    api_version: int
    body: bytes
    asker: Asker = Asker()


class Call:
    """One of them, answered once: by the coordinator, or by this broker when that one is lost.

    An answer is the body of the response, or an error code that says why there is none.
    """

    __slots__ = ("_on_answered", "attachment", "request")

    def __init__(
        self, request: PassedOnRequest, on_answered: Callable[[bytes | None, ErrorCode], None]
    ) -> None:
        self.request = request
        self.attachment: Attachment | None = None
        """With whose end it is refused."""
        self._on_answered: Callable[[bytes | None, ErrorCode], None] | None = on_answered

    def answered(self, body: bytes | None, error: ErrorCode) -> None:
        on_answered, self._on_answered = self._on_answered, None
        if on_answered is not None:
            on_answered(body, error)

    def abandon(self) -> None:
        """Nobody waits for the answer any more. The coordinator is not told; it still owes one, and counts
        with this session until then.
        """
        self._on_answered = None
