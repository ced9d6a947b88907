"""The query of a search for records, from the fields of a form. Its filter looks for text in the key, the
value and the headers, and for equality at a path of a JSON value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidelog.console.core.decoded import Decoded, DecodedRecord, contains_text
from tidelog.console.core.record_text import without_schema_id
from tidelog.records.record import Record

MAX_TEXT_CHARS: Final = 1_000
MAX_JSON_BYTES: Final = 1024 * 1024
"""The size of a value above which a JSON condition does not look into it."""
MAX_STEPS: Final = 32
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,9})\]")
STARTS: Final = ("newest", "oldest", "offset", "time")
LIMITS: Final = (20, 50, 200, 500)
"""The numbers of records that a page can show."""
DEFAULT_LIMIT: Final = 50
NEWEST_SEARCHED: Final = 10_000
"""The records at the end of a partition that a search with a filter for the newest records reads."""
MAX_OFFSET: Final = 2**63 - 1
_CURSOR: Final = re.compile(r"\d{1,9}:\d{1,19}(?:,\d{1,9}:\d{1,19})*")


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


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A search in a topic. `partition` None means all partitions.

    `cursor` maps partitions to offsets where an earlier search ended, and precedes `start`. `time_ms` is in
    milliseconds since 1970.
    """

    partition: int | None = None
    start: str = "newest"
    offset: int = 0
    time_ms: int = 0
    cursor: Mapping[int, int] | None = None
    wanted: RecordFilter = EVERY_RECORD
    limit: int = DEFAULT_LIMIT
    is_committed_only: bool = False

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> RecordQuery:
        """Returns the query of a form. Raises FilterError, which names the wrong field."""
        start = fields.get("start", "") or "newest"
        if start not in STARTS:
            raise FilterError(f"The start '{start}' is not one of {', '.join(STARTS)}.")
        partition = fields.get("partition", "").strip()
        limit = _number("number of records", fields.get("limit", "") or str(DEFAULT_LIMIT), max(LIMITS))
        return cls(
            _number("partition", partition, 2**31 - 1) if partition else None,
            start,
            _number("offset", fields.get("offset", "") or "0", MAX_OFFSET) if start == "offset" else 0,
            _time(fields.get("time", "")) if start == "time" else 0,
            _cursor(fields.get("from", "")),
            RecordFilter.parse(*(fields.get(name, "") for name in ("key", "value", "header", "json"))),
            max(1, limit),
            fields.get("isolation", "") == "committed",
        )

    def starts(
        self, log_starts: Mapping[int, int], ends: Mapping[int, int], at_time: Mapping[int, int]
    ) -> dict[int, int]:
        """Returns the first offset to read of each partition in `ends`. `at_time` has the offsets of
        `time_ms`, -1 if no record is that late.
        """
        window = self.window([end - log_starts[index] for index, end in ends.items()])
        found: dict[int, int] = {}
        for index, end in ends.items():
            if self.cursor is not None:
                wanted = self.cursor.get(index, end)
            elif self.start == "newest":
                wanted = end - window
            elif self.start == "offset":
                wanted = self.offset
            elif self.start == "time":
                wanted = at_time.get(index, -1)
                wanted = end if wanted < 0 else wanted
            else:
                wanted = 0
            found[index] = min(end, max(log_starts[index], wanted))
        return found

    def window(self, sizes: Iterable[int]) -> int:
        """Returns how many offsets before the end of each partition a search for the newest records begins.

        `sizes` are the numbers of offsets in the partitions. Without a filter, the search reads about as many
        offsets as the page shows: what small partitions do not have, others provide.
        """
        if not self.wanted.is_empty:
            return NEWEST_SEARCHED
        ordered = sorted(size for size in sizes if size > 0)
        left = self.limit
        for number, size in enumerate(ordered):
            share = -(-left // (len(ordered) - number))
            if size >= share:
                return share
            left -= size
        return max(ordered, default=1)


def cursor_text(positions: Mapping[int, int]) -> str:
    """Returns the positions as text for `from` in a link."""
    return ",".join(f"{index}:{offset}" for index, offset in sorted(positions.items()))


def _number(name: str, text: str, most: int) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
        raise FilterError(f"The {name} '{text[:40]}' is not a number from 0 to {most}.")
    return int(text)


def _cursor(text: str) -> dict[int, int] | None:
    if not text:
        return None
    if _CURSOR.fullmatch(text) is None:
        raise FilterError("The address of this page does not say where to continue: begin a new search.")
    pairs = (part.split(":") for part in text.split(","))
    return {int(index): min(int(offset), MAX_OFFSET) for index, offset in pairs}


def _time(text: str) -> int:
    """Returns milliseconds since 1970 of a number or of an ISO date and time, which is in UTC by default."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise FilterError(
            f"The time '{text[:40]}' is neither a date and time, such as 2026-01-31T14:00, "
            "nor milliseconds since 1970."
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1000))
