"""Shows the bytes of keys, values and headers as JSON, as text or as hexadecimal numbers."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from tidelog.records.record import Record

PREVIEW_BYTES: Final = 2_000
"""The bytes of a key or value in a list of records."""
WHOLE_BYTES: Final = 1024 * 1024
"""The bytes of a key or value on the page of one record."""
PREVIEW_HEADERS: Final = 20
WHOLE_HEADERS: Final = 1_000
_HEX_COLUMNS: Final = 16
_CONFLUENT_PREFIX_BYTES: Final = 5


class Shown(NamedTuple):
    """Bytes as text. `kind` is null, json, text or hex. `omitted_bytes` counts those that are not shown."""

    kind: str
    text: str
    size_bytes: int
    omitted_bytes: int = 0
    note: str = ""


class ShownRecord(NamedTuple):
    """A record as the pages show it."""

    partition: int
    offset: int
    timestamp: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    omitted_headers: int


def show_record(partition: int, record: Record, *, is_whole: bool = False) -> ShownRecord:
    max_bytes = WHOLE_BYTES if is_whole else PREVIEW_BYTES
    max_headers = WHOLE_HEADERS if is_whole else PREVIEW_HEADERS
    headers = record.headers[:max_headers]
    return ShownRecord(
        partition,
        record.offset,
        record.timestamp,
        show(record.key, max_bytes),
        show(record.value, max_bytes),
        tuple((name[:PREVIEW_BYTES], show(content, PREVIEW_BYTES)) for name, content in headers),
        len(record.headers) - len(headers) + record.omitted_headers,
    )


def show(data: bytes | None, max_bytes: int) -> Shown:
    """Returns at most `max_bytes` of the bytes as text: indented JSON, text of printable characters, or a
    hexadecimal dump.
    """
    if data is None:
        return Shown("null", "null", 0)
    size = len(data)
    content = without_schema_id(data)
    if size <= max_bytes and content[:1] in (b"{", b"["):
        try:
            pretty = _indented(json.loads(content), 4 * max_bytes)
        except (ValueError, RecursionError):
            pretty = ""
        if pretty and _is_encodable(pretty):
            note = "" if content is data else f"Its schema id is {_schema_id(data)}."
            return Shown("json", pretty, size, note=note)
    part = data[:max_bytes]
    text = _as_text(part, is_cut=size > max_bytes)
    if text is not None:
        return Shown("text", text, size, size - len(part))
    part = data[: max_bytes // 4]
    return Shown("hex", _dump(part), size, size - len(part), _schema_note(data))


def _indented(value: object, max_chars: int) -> str:
    """Returns indented JSON, or nothing if it is longer. The indentation of deep arrays may be far longer
    than the data.
    """
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        size += len(part)
        if size > max_chars:
            return ""
        parts.append(part)
    return "".join(parts)


def without_schema_id(data: bytes) -> bytes:
    """Returns JSON without the schema id that the serializers of a registry write before it, and other bytes
    as they are.
    """
    has_id = data[:1] == b"\0" and data[_CONFLUENT_PREFIX_BYTES : _CONFLUENT_PREFIX_BYTES + 1] in (b"{", b"[")
    return data[_CONFLUENT_PREFIX_BYTES:] if has_id else data


def _schema_id(data: bytes) -> int:
    return int.from_bytes(data[1:_CONFLUENT_PREFIX_BYTES])


def _is_encodable(text: str) -> bool:
    """Returns whether UTF-8 can encode the text: JSON may contain half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(data: bytes, *, is_cut: bool) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 3 or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return text if all(each.isprintable() or each in "\n\r\t" for each in text) else None


def _dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _HEX_COLUMNS):
        row = data[start : start + _HEX_COLUMNS]
        text = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        lines.append(f"{start:06x}  {row.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {text}")
    return "\n".join(lines)


def _schema_note(data: bytes) -> str:
    """Returns what the prefix of Confluent's serializers says: a zero byte and the id of a schema."""
    if len(data) > _CONFLUENT_PREFIX_BYTES and data[0] == 0:
        return (
            f"The first bytes look like schema id {_schema_id(data)} of a registry. "
            "The console does not decode it."
        )
    return ""
