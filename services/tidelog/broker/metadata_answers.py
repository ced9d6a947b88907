"""Encoded Metadata responses, kept as long as the metadata in them is current."""

from __future__ import annotations

from typing import Final

from tidelog.broker.request import EncodedBody

MAX_ANSWERS: Final = 64
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The limit for the size of all kept responses."""


class MetadataAnswers:
    __slots__ = ("_answers", "_bytes", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._answers: dict[tuple[object, ...], EncodedBody] = {}
        self._bytes = 0

    def get(self, key: tuple[object, ...], version: int) -> EncodedBody | None:
        return self._answers.get(key) if version == self._version else None

    def put(self, key: tuple[object, ...], version: int, body: EncodedBody) -> None:
        size = sum(map(len, body.chunks))
        if (
            version != self._version
            or len(self._answers) >= MAX_ANSWERS
            or self._bytes + size > MAX_ANSWER_BYTES
        ):
            self._answers.clear()
            self._bytes = 0
            self._version = version
        if size <= MAX_ANSWER_BYTES:
            self._answers[key] = body
            self._bytes += size
