"""Filters on records: text in the key, the value and the headers, and equality at a path of a JSON value."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from tidelog.console.core.decoded import Decoded, DecodedRecord, contains_text
from tidelog.console.core.record_text import without_schema_id
from tidelog.records.record import Record

MAX_TEXT_CHARS: Final = 1_000
MAX_JSON_BYTES: Final = 1024 * 1024
"""The size of a value above which a JSON condition does not look into it."""
MAX_STEPS: Final = 32
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9})\]")


class FilterError(ValueError):
    """A filter cannot be used. The message is one sentence for the reader of the page."""


@dataclass(frozen=True, slots=True)
class JsonCondition:
    """Equality at a path of a JSON value, such as `order.lines[0].sku = "A7"`."""

    steps: tuple[str | int, ...]
    wanted: object

    @classmethod
    def parse(cls, text: str) -> JsonCondition:
        """Parses `PATH=VALUE`. VALUE is JSON, or else a text without quotes. Raises FilterError."""
        path, equals, value = text.partition("=")
        path = path.strip().removeprefix("$").removesuffix("=")
        if not equals or not path:
            raise FilterError(f"The JSON filter '{text}' is not PATH=VALUE, such as user.id=42.")
        steps: list[str | int] = []
        position = 0
        while position < len(path):
            found = _STEP.match(path, position)
            if found is None or len(steps) == MAX_STEPS:
                raise FilterError(
                    f"The JSON path '{path}' is not a path of at most {MAX_STEPS} names and indexes, "
                    "such as order.lines[0].sku."
                )
            steps.append(found[1] if found[1] is not None else int(found[2]))
            position = found.end()
        value = value.strip().removeprefix("=").strip()
        try:
            wanted = json.loads(value)
        except (ValueError, RecursionError):
            wanted = value
        return cls(tuple(steps), wanted)

    def matches(self, data: bytes | None, decoded: Decoded | None = None) -> bool:
        """Looks into the decoded value, or else into the bytes as JSON."""
        found: object
        if decoded is not None and decoded.kind is not None:
            found = decoded.value
        elif data is None or len(data) > MAX_JSON_BYTES:
            return False
        else:
            try:
                found = json.loads(without_schema_id(data))
            except (ValueError, RecursionError):  # no JSON, or nested too deeply
                return False
        for step in self.steps:
            if isinstance(step, str):
                if not isinstance(found, dict) or step not in found:
                    return False
                found = found[step]
            elif isinstance(found, list) and step < len(found):
                found = found[step]
            else:
                return False
        is_same = type(found) is type(self.wanted) and found == self.wanted
        return is_same or _same_number(found, self.wanted)


def _same_number(one: object, other: object) -> bool:
    """Returns whether two numbers are equal. In Python, True is a number, but not in JSON."""
    numbers = (int, float)
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    return isinstance(one, numbers) and isinstance(other, numbers) and one == other


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """The conditions of which a record must meet all. Texts match bytes in UTF-8 or the JSON of a decoded key
    or value, with upper and lower case.

    `header` is a name, or `NAME=TEXT` for a header whose value contains the text.
    """

    key: str = ""
    value: str = ""
    header: str = ""
    json: JsonCondition | None = None

    @classmethod
    def parse(cls, key: str, value: str, header: str, json_condition: str) -> RecordFilter:
        """Returns the filter of the fields of a form. Raises FilterError."""
        for text in (key, value, header, json_condition):
            if len(text) > MAX_TEXT_CHARS:
                raise FilterError(f"A filter has more than {MAX_TEXT_CHARS} characters.")
        condition = JsonCondition.parse(json_condition) if json_condition.strip() else None
        return cls(key, value, header, condition)

    @property
    def is_empty(self) -> bool:
        return not (self.key or self.value or self.header or self.json)

    def matches(self, record: Record, decoded: DecodedRecord | None = None) -> bool:
        decoded = decoded or DecodedRecord(record, None)
        if self.header and not self._has_header(record):
            return False
        if (
            self.key
            and self.key.encode() not in (record.key or b"")
            and not contains_text(decoded.key, self.key)
        ):
            return False
        if (
            self.value
            and self.value.encode() not in (record.value or b"")
            and not contains_text(decoded.value, self.value)
        ):
            return False
        return self.json is None or self.json.matches(record.value, decoded.value)

    def _has_header(self, record: Record) -> bool:
        name, equals, text = self.header.partition("=")
        return any(
            each == name and (not equals or text.encode() in (content or b""))
            for each, content in record.headers
        )


EVERY_RECORD: Final = RecordFilter()
