"""Converts lines to records: `[headers TAB] [key TAB] value`, in the format of Kafka's console producer."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.cli.tool_command import ToolError
from tidelog.records.record import Record
from tidelog.records.record_writer import Header


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The format of lines.

    A key or value that equals `null_marker` is null. Every record gets `headers`.
    """

    parses_key: bool = False
    key_separator: str = "\t"
    parses_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    null_marker: str | None = None
    headers: tuple[Header, ...] = ()

    def record_of(self, line: bytes, timestamp_ms: int, line_number: int) -> Record:
        """Converts one line. Raises ToolError that names the line and the missing part."""
        rest = line
        headers = self.headers
        if self.parses_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers", line_number)
            headers += self._headers_of(text, line_number)
        key: bytes | None = None
        if self.parses_key:
            key, rest = self._split(rest, self.key_separator, "key", line_number)
        return Record(0, timestamp_ms, self._or_null(key), self._or_null(rest), headers)

    def _split(self, text: bytes, separator: str, part: str, line_number: int) -> tuple[bytes, bytes]:
        before, found, after = text.partition(separator.encode())
        if not found:
            raise ToolError(f"line {line_number} has no {part}: expected {separator!r} after the {part}")
        return before, after

    def _or_null(self, content: bytes | None) -> bytes | None:
        if content is None or (self.null_marker is not None and content == self.null_marker.encode()):
            return None
        return content

    def _headers_of(self, text: bytes, line_number: int) -> tuple[Header, ...]:
        marked = self._or_null(text)
        if not marked:
            return ()
        headers: list[Header] = []
        for part in marked.split(self.headers_separator.encode()):
            name, value = self._split(part, self.headers_key_separator, "header value", line_number)
            headers.append((name.decode(errors="replace"), self._or_null(value)))
        return tuple(headers)


class LineSplitter:
    """Splits chunks of input into lines without their ends (`\\n` or `\\r\\n`)."""

    def __init__(self, max_line_bytes: int) -> None:
        self._parts: list[bytes] = []
        """The parts of a line whose end is missing. They are joined once, so a long line costs no more."""
        self._size_bytes = 0
        self._count = 0
        self._max_line_bytes = max_line_bytes

    def lines(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes; b"" ends the input.

        Raises ToolError if the line is too long that earlier chunks began.
        """
        if self._size_bytes > self._max_line_bytes:
            text = f"line {self._count + 1} is longer than {self._max_line_bytes} bytes"
            raise ToolError(f"{text}; the input must be text")
        if not chunk:
            last = self._take(b"")
            return [last] if last else []
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = self._take(whole[0])
        self._parts.append(rest)
        self._size_bytes += len(rest)
        self._count += len(whole)
        return [line.removesuffix(b"\r") for line in whole]

    def _take(self, end: bytes) -> bytes:
        """Returns the line that `end` completes."""
        line = b"".join([*self._parts, end])
        self._parts, self._size_bytes = [], 0
        return line
