"""The history of a load, record by record, and of the reads afterwards, in the format that the checker reads.

Each record has a number that is unique for its key. Its value can be computed from key and number, so a
reader can see whether it was changed. A history file has one JSON object a line: `{"sent": [...]}` and
`{"read": [...]}` with the fields of `Sent` and `Read` in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ACKNOWLEDGED = "acknowledged"
UNKNOWN = "unknown"
"""No acknowledgement arrived (timeout, error after sending, end of the client), so it is unknown whether the
record is stored.
"""
NO_PLACE = -1
"""The offset of an acknowledged record that the broker no longer knows, because the record was a repeat (the
client got DUPLICATE_SEQUENCE_NUMBER). The record is stored at an unknown offset.
"""


class Sent(NamedTuple):
    """A record that a producer accepted, with its outcome. Times are on the process's monotonic clock."""

    key: str
    number: int
    outcome: str
    partition: int
    offset: int
    sent_at_s: float
    settled_at_s: float
    error: str = ""


class Read(NamedTuple):
    """A record that a consumer received. `number` is NO_PLACE and `is_intact` is False if no load wrote the
    value.
    """

    partition: int
    offset: int
    key: str
    number: int
    is_intact: bool


@dataclass
class History:
    """`tailed` was read during the load. A record that was shown to a reader must stay in the log. `final`
    was read afterwards, from each partition's start to its end. Both are in the order of reading.
    """

    sent: list[Sent] = field(default_factory=list)
    tailed: list[Read] = field(default_factory=list)
    final: list[Read] = field(default_factory=list)

    def save(self, path: Path) -> None:
        with path.open("w") as file:
            for name in ("sent", "tailed", "final"):
                file.writelines(json.dumps({name: entry}) + "\n" for entry in getattr(self, name))

    @staticmethod
    def load(path: Path) -> History:
        history = History()
        with path.open() as file:
            for line in file:
                ((name, fields),) = json.loads(line).items()
                if name == "sent":
                    history.sent.append(Sent(*fields))
                else:
                    getattr(history, name).append(Read(*fields))
        return history

    def acknowledged(self) -> Iterable[Sent]:
        return (record for record in self.sent if record.outcome == ACKNOWLEDGED)


def value_of(key: str, number: int, size_bytes: int) -> bytes:
    """Returns the value of record `number` of `key`: its name, then a filling of its own."""
    head = f"{key} {number} ".encode()
    filling = hashlib.blake2b(head, digest_size=16).hexdigest().encode()
    repeats = max(0, size_bytes - len(head)) // len(filling) + 1
    return (head + filling * repeats)[: max(size_bytes, len(head))]


def read_of(partition: int, offset: int, key: bytes | None, value: bytes | None) -> Read:
    """Converts a consumed record to the history's form."""
    name = (key or b"").decode(errors="replace")
    value = value or b""
    try:
        said, number_text, _ = value.split(b" ", 2)
        number = int(number_text)
    except ValueError:
        return Read(partition, offset, name, NO_PLACE, False)
    is_intact = said.decode(errors="replace") == name and value == value_of(name, number, len(value))
    return Read(partition, offset, name, number, is_intact)
