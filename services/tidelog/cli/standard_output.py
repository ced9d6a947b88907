"""Standard output that fails: a full disk, or a pipe that nobody reads."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(Exception):
    """A failed write to standard output.

    It is not an OSError, because commands report those as errors of their own files.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output can't be written: {error.strerror}")
        self.is_closed_pipe = error.errno == errno.EPIPE


class _Output(io.FileIO):
    """The file of standard output, whose errors differ from those of other files. After the first error, it
    discards what buffers still hold.
    """

    has_failed = False

    def write(self, data: ReadableBuffer) -> int:
        size_bytes = memoryview(data).nbytes
        if self.has_failed or not size_bytes:  # click examines streams with empty writes and ignores errors
            return size_bytes
        try:
            return super().write(data)
        except OSError as error:
            self.has_failed = True
            raise OutputError(error) from error


@contextlib.contextmanager
def reported_output_errors() -> Iterator[None]:
    """Ends the process with one line if its standard output can't be written, now or when its buffers are
    written at the end. It ends without a line if nobody reads the pipe any more, as in
    `tidelog topic list | head -1`.

    If something else has replaced standard output, as tests do, this changes nothing.
    """
    before = sys.__stdout__
    if before is None or sys.stdout is not before:
        yield
        return
    file = _Output(before.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        file if before.write_through else io.BufferedWriter(file),  # as Python does
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputError as error:
        sys.exit(1 if error.is_closed_pipe else f"tidelog: {error}")
    finally:
        sys.stdout = before
