"""Shows the bytes of keys, values and headers as JSON, as text or as hexadecimal numbers, and decoded ones as
JSON.

Names and records come from anybody who may write to the cluster. `visible` shows the characters that browsers
do not show, or that change the order of those around them. With U+202E, `gnp.exe` reads as `exe.png`.
"""

from __future__ import annotations

import json
import unicodedata
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from tidelog.console.core.decoded import Decoded, DecodedRecord
from tidelog.records.record import Record
from tidelog.records.schemas import SCHEMA_ID_BYTES, schema_id_of

PREVIEW_BYTES: Final = 2_000
"""The bytes of a key or value in a list of records."""
WHOLE_BYTES: Final = 1024 * 1024
"""The bytes of a key or value on the page of one record."""
PREVIEW_HEADERS: Final = 20
WHOLE_HEADERS: Final = 1_000
_HEX_COLUMNS: Final = 16
_ESCAPED: Final = "Invisible characters are shown as \\u and their number."
_BREAKS: Final = "\n\r\t"
_JOINERS: Final = "\u200c\u200d"
"""They choose the form of letters in Persian and in the scripts of India, and compose emoji."""
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of controls, format characters, surrogates, and separators of lines and paragraphs."""


class Shown(NamedTuple):
    """Bytes as text. `kind` is null, json, avro, protobuf, text or hex. `omitted_bytes` counts those that are
    not shown.
    """

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


def show_record(
    partition: int, record: Record, decoded: DecodedRecord | None = None, *, is_whole: bool = False
) -> ShownRecord:
    decoded = decoded or DecodedRecord(record, None)
    max_bytes = WHOLE_BYTES if is_whole else PREVIEW_BYTES
    max_headers = WHOLE_HEADERS if is_whole else PREVIEW_HEADERS
    headers = record.headers[:max_headers]
    return ShownRecord(
        partition,
        record.offset,
        record.timestamp,
        show(record.key, max_bytes, decoded.key),
        show(record.value, max_bytes, decoded.value),
        tuple((visible(name[:PREVIEW_BYTES]), show(content, PREVIEW_BYTES)) for name, content in headers),
        len(record.headers) - len(headers) + record.omitted_headers,
    )


def show(data: bytes | None, max_bytes: int, decoded: Decoded | None = None) -> Shown:
    """Returns at most `max_bytes` of the bytes as text: indented JSON, text, or a hexadecimal dump. A decoded
    value is indented JSON of at most four times as many characters.

    JSON is indented only if its numbers and names stay the same.
    """
    if data is None:
        return Shown("null", "null", 0)
    size = len(data)
    if decoded is not None and decoded.kind is not None:
        return _show_decoded(decoded.kind, decoded, size, 4 * max_bytes)
    shown = _show_bytes(data, max_bytes)
    return shown if decoded is None or shown.kind == "json" else shown._replace(note=decoded.note)


def _show_decoded(kind: str, decoded: Decoded, size: int, max_chars: int) -> Shown:
    text, is_cut = _indented(decoded.value, max_chars)
    note = f"{decoded.note} The text ends after {max_chars:,} characters." if is_cut else decoded.note
    return Shown(kind, visible(text), size, note=note)


def _show_bytes(data: bytes, max_bytes: int) -> Shown:
    size = len(data)
    content = without_schema_id(data)
    if size <= max_bytes and content[:1] in (b"{", b"["):
        try:
            pretty, is_cut = _indented(_unchanged(content), 4 * max_bytes)
        except (ValueError, RecursionError):
            pretty, is_cut = "", True
        if not is_cut and _is_encodable(pretty):
            note = "" if content is data else f"Its schema id is {schema_id_of(data)}."
            return Shown("json", visible(pretty), size, note=note)
    part = data[:max_bytes]
    text = _as_text(part, is_cut=size > max_bytes)
    if text is not None:
        shown = visible(text)
        return Shown("text", shown, size, size - len(part), "" if shown == text else _ESCAPED)
    part = data[: max_bytes // 4]
    return Shown("hex", _dump(part), size, size - len(part), _schema_note(data))


def _unchanged(content: bytes) -> object:
    """Returns the value of JSON. Raises ValueError also if printing it would change a number or leave out a
    name.
    """

    def number(text: str) -> float:
        value = float(text)
        if Decimal(repr(value)) != Decimal(text):
            raise ValueError("a number with more digits than a float")
        return value

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name that occurs twice")
        return found

    def constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is not JSON")

    return json.loads(content, parse_float=number, parse_constant=constant, object_pairs_hook=members)


def _indented(value: object, max_chars: int) -> tuple[str, bool]:
    """Returns indented JSON, and whether it ends after `max_chars` characters. The indentation of deep arrays
    may be far longer than the data.
    """
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        size += len(part)
        parts.append(part)
        if size > max_chars:
            return "".join(parts)[:max_chars], True
    return "".join(parts), False


def without_schema_id(data: bytes) -> bytes:
    """Returns JSON without the schema id that the serializers of a registry write before it, and other bytes
    as they are.
    """
    has_id = schema_id_of(data) is not None and data[SCHEMA_ID_BYTES : SCHEMA_ID_BYTES + 1] in (b"{", b"[")
    return data[SCHEMA_ID_BYTES:] if has_id else data


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
    return text if is_text(text) else None


def _dump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _HEX_COLUMNS):
        row = data[start : start + _HEX_COLUMNS]
        text = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        lines.append(f"{start:06x}  {row.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {text}")
    return "\n".join(lines)


def _schema_note(data: bytes) -> str:
    schema_id = schema_id_of(data)
    if schema_id is None or len(data) == SCHEMA_ID_BYTES:
        return ""
    return (
        f"The first bytes look like schema id {schema_id} of a registry. The console decodes Avro and "
        "Protobuf if it is started with --schema-registry or --schema-dir."
    )


def visible(text: str) -> str:
    """Returns a text whose invisible characters are escapes of JSON, such as `\\u202e`."""
    if text.isprintable():
        return text
    return "\n".join(line if line.isprintable() else "".join(map(_shown, line)) for line in text.split("\n"))


def is_text(text: str) -> bool:
    """Returns whether people could have written a text: it has no controls but breaks, and no characters that
    Unicode does not define.
    """
    return all(line.isprintable() or all(map(_is_written, line)) for line in text.split("\n"))


def _shown(character: str) -> str:
    if character in _BREAKS or character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _is_written(character: str) -> bool:
    if character.isprintable() or character in _BREAKS:
        return True
    return unicodedata.category(character) in ("Cf", "Zl", "Zp", "Zs")
