"""A file that stands in for a segment, for tests of what is sent from it."""

from __future__ import annotations

import random
import tempfile
from typing import Final, cast

from tidelog.broker.log.segment import FileRange, Segment

FILE_BYTES: Final = random.Random(1).randbytes(4 * 1024 * 1024)


class OpenFile:
    """A segment that counts the ranges that keep it open."""

    path = "segment"

    def __init__(self, contents: bytes = FILE_BYTES) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._file.write(contents)
        self._file.flush()
        self.fd = self._file.fileno()
        self.references = 0

    def range(self, position: int, length: int) -> FileRange:
        return FileRange(cast(Segment, self), position, length, 0)

    def release(self) -> None:
        self.references -= 1

    def close(self) -> None:
        self._file.close()
