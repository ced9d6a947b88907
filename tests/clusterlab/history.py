"""What a load did, record by record, and what was read afterwards: the format that the checker judges.

Each record is numbered per key. Its value can be worked out from key and number, so a reader needs nothing
else to see whether it was changed. A history file is one JSON object a line: `{"sent": [...]}` and
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
"""No acknowledgement came (time-out, an error after sending, the client's end): stored or not, who knows."""
NO_PLACE = -1
"""Of an acknowledged record: a repeat too old for the broker to know its offset still (the client is told so
by DUPLICATE_SEQUENCE_NUMBER); it is stored, but where wasn't said.
"""


class Sent(NamedTuple):
    """A record a producer was given, and what became of it; times by the process's monotonic clock."""

    key: str
    number: int
    outcome: str
    partition: int
    offset: int
    sent_at_s: float
    settled_at_s: float
    error: str = ""


class Read(NamedTuple):
    """A record a consumer was shown. `number` is NO_PLACE and `is_intact` false if the value is not one that
    a load wrote.
    """

    partition: int
    offset: int
    key: str
    number: int
    is_intact: bool


@dataclass
class History:
    """`tailed` was read while the load ran (what a reader was shown is never taken back), `final` after it,
    from each partition's start to its end; both in the order in which they came.
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
    """The value of record `number` of `key`: its name, then a filling that is its own."""
    head = f"{key} {number} ".encode()
    filling = hashlib.blake2b(head, digest_size=16).hexdigest().encode()
    repeats = max(0, size_bytes - len(head)) // len(filling) + 1
    return (head + filling * repeats)[: max(size_bytes, len(head))]


def read_of(partition: int, offset: int, key: bytes | None, value: bytes | None) -> Read:
    """A consumed record as the history keeps it."""
    name = (key or b"").decode(errors="replace")
    value = value or b""
    try:
        said, number_text, _ = value.split(b" ", 2)
        number = int(number_text)
    except ValueError:
        return Read(partition, offset, name, NO_PLACE, False)
    is_intact = said.decode(errors="replace") == name and value == value_of(name, number, len(value))
    return Read(partition, offset, name, number, is_intact)
