"""Formats of printed records: templates as in kcat, lines of JSON, and columns. No I/O."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidelog.cli.tool_command import ToolError
from tidelog.observe.number_texts import iso_time
from tidelog.records.record_writer import Header

_ESCAPES: Final[Mapping[str, str]] = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([%\\])$", re.DOTALL)
_LONGEST_CELL: Final = 60


class PrintedRecord(Protocol):
    """A record. `timestamp` is in milliseconds since 1970, `omitted_headers` the number of other headers."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> tuple[Header, ...]: ...

    @property
    def omitted_headers(self) -> int: ...


class RecordFormatter(Protocol):
    """A format of records."""

    def line_of(self, record: PrintedRecord, partition: int) -> bytes: ...


def _length(content: bytes | None) -> bytes:
    return b"%d" % (-1 if content is None else len(content))


class TemplateFormat:
    """A template such as `%t %p %o %k %v\\n`.

    `%t` is the topic, `%p` the partition, `%o` the offset, `%k` the key, `%v` or `%s` the value, `%h` the
    headers as `name=value,...`, `%T` the timestamp in milliseconds since 1970, `%K` and `%S` the lengths of
    key and value (-1 for null), and `%%` a percent sign. A null key, value or header prints `null`.
    """

    def __init__(self, template: str, topic: str, *, null: bytes = b"") -> None:
        """Raises ToolError that names the unknown part."""
        self._topic = topic.encode()
        self._null = null
        self._parts: list[bytes | Callable[[PrintedRecord, int], bytes]] = []
        position = 0
        for match in _TOKEN.finditer(template):
            self._parts.append(template[position : match.start()].encode())
            position = match.end()
            self._parts.append(self._part(template, match))
        self._parts.append(template[position:].encode())

    def line_of(self, record: PrintedRecord, partition: int) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record, partition) for part in self._parts)

    def _part(self, template: str, match: re.Match[str]) -> bytes | Callable[[PrintedRecord, int], bytes]:
        token, code, escape, _ = match.groups()
        if code:
            return bytes((int(code, 16),))
        if escape and escape in _ESCAPES:
            return _ESCAPES[escape].encode()
        found = self._tokens().get(token) if token else None
        if found is None:
            raise ToolError(
                f"-f {template}: {match.group()} is not one of "
                "%t %p %o %k %v %s %h %T %K %S %% \\n \\r \\t \\xNN"
            )
        return found

    def _tokens(self) -> Mapping[str, bytes | Callable[[PrintedRecord, int], bytes]]:
        null = self._null

        def value(record: PrintedRecord, partition: int) -> bytes:
            return null if record.value is None else record.value

        return {
            "t": self._topic,
            "%": b"%",
            "p": lambda record, partition: b"%d" % partition,
            "o": lambda record, partition: b"%d" % record.offset,
            "T": lambda record, partition: b"%d" % record.timestamp,
            "k": lambda record, partition: null if record.key is None else record.key,
            "v": value,
            "s": value,
            "K": lambda record, partition: _length(record.key),
            "S": lambda record, partition: _length(record.value),
            "h": lambda record, partition: b",".join(
                name.encode() + b"=" + (null if content is None else content)
                for name, content in record.headers
            ),
        }


class JsonFormat:
    """A JSON object for each record, in one line.

    `timestamp` is in milliseconds since 1970, or null. A key, value or header that is not UTF-8 is an object
    with `base64`.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def line_of(self, record: PrintedRecord, partition: int) -> bytes:
        fields: dict[str, object] = {
            "topic": self._topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp < 0 else record.timestamp,
            "key": _json_of(record.key),
            "value": _json_of(record.value),
            "headers": [{"key": name, "value": _json_of(content)} for name, content in record.headers],
        }
        if record.omitted_headers:
            fields["omitted_headers"] = record.omitted_headers
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class ColumnFormat:
    """Aligned columns of partition, offset, time in UTC, key and value. Long keys and values are cut."""

    HEADING: Final = f"{'PARTITION':>9}  {'OFFSET':>10}  {'TIME':<24}  {'KEY':<20}  VALUE\n".encode()

    def line_of(self, record: PrintedRecord, partition: int) -> bytes:
        line = (
            f"{partition:>9}  {record.offset:>10}  {iso_time(record.timestamp):<24}  "
            f"{_cell(record.key):<20}  {_cell(record.value)}\n"
        )
        return line.encode()


def _json_of(content: bytes | None) -> object:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _cell(content: bytes | None) -> str:
    if content is None:
        return "null"
    text = content[: 4 * _LONGEST_CELL].decode(errors="replace")
    text = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    is_cut = len(text) > _LONGEST_CELL or len(content) > 4 * _LONGEST_CELL
    return text[: _LONGEST_CELL - 1] + "\N{HORIZONTAL ELLIPSIS}" if is_cut else text
