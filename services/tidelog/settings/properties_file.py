"""Parses Java's properties files, such as Kafka's `server.properties`, with one `name=value` per line.

The grammar is that of `java.util.Properties.load`. A comment begins with `#` or `!`. A name ends at the first
`=`, `:` or white space. A backslash at the end of a line joins the next line to it. `\\t`, `\\n`, `\\r`,
`\\f` and `\\uXXXX` are escapes; any other escaped character represents itself.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WHITE_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_HEX_DIGITS: Final = 4


class PropertiesError(ValueError):
    """A line cannot be parsed. The message contains its number."""


class Property(NamedTuple):
    """A property. `line` is the number of its first line, from 1 on."""

    name: str
    value: str
    line: int


def parse_properties(text: str) -> list[Property]:
    """Returns all properties in the order of the file. A name may occur several times. Raises
    PropertiesError.
    """
    found: list[Property] = []
    lines = _LINE_END.split(text)
    index = 0
    while index < len(lines):
        first = index + 1
        line = lines[index].lstrip(_WHITE_SPACE)
        index += 1
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            following = lines[index].lstrip(_WHITE_SPACE) if index < len(lines) else ""
            line = line[:-1] + following
            index += 1
        name_end, value_start = _split(line)
        found.append(Property(_unescape(line[:name_end], first), _unescape(line[value_start:], first), first))
    return found


def _is_continued(line: str) -> bool:
    """Returns whether the line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[int, int]:
    """Returns the position where the name ends and the position where the value begins."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _WHITE_SPACE:
        end += 2 if line[end] == "\\" else 1
    start = end
    while start < len(line) and line[start] in _WHITE_SPACE:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _WHITE_SPACE:
            start += 1
    return end, start


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\" or position == len(text):
            parts.append(character)
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            parts.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + _HEX_DIGITS]
        if not re.fullmatch(r"[0-9A-Fa-f]{4}", digits):
            raise PropertiesError(f"line {line}: \\u must be followed by four hexadecimal digits")
        parts.append(chr(int(digits, 16)))
        position += _HEX_DIGITS
    return "".join(parts)
