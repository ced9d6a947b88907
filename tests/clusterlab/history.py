"""The history of a load, record by record, and of the reads afterwards, and its checker, which finds
anomalies.

Each record has a number that is unique for its key. Its value can be computed from key and number, so a
reader can see whether it was changed. A history file has one JSON object a line: `{"sent": [...]}` and
`{"read": [...]}` with the fields of `Sent` and `Read` in order. `judge` uses no clock and no network:

| anomaly | meaning |
|---|---|
| lost | an acknowledged record is missing |
| duplicated | a record is there more than once |
| reordered | a key's records are stored in another order than they were sent |
| moved | an acknowledged record is at another place than its acknowledgement said |
| changed | a value differs from what was sent |
| invented | nobody sent the record |
| taken back | a reader received a record at a place that now has no record or another one |
| reread | one pass of a reader moved backwards or met an offset twice |
| acknowledged twice | two records were acknowledged with the same partition and offset |
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

LOST = "lost"
DUPLICATED = "duplicated"
REORDERED = "reordered"
MOVED = "moved"
CHANGED = "changed"
INVENTED = "invented"
TAKEN_BACK = "taken back"
REREAD = "reread"
ACKNOWLEDGED_TWICE = "acknowledged twice"
SHOWN_ANOMALIES = 10
RecordName = tuple[str, int]
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


class Anomaly(NamedTuple):
    kind: str
    partition: int
    offset: int
    detail: str


@dataclass(frozen=True)
class Verdict:
    anomalies: tuple[Anomaly, ...]
    sent: int
    acknowledged: int
    read: int

    @property
    def is_sound(self) -> bool:
        return not self.anomalies

    @property
    def kinds(self) -> Counter[str]:
        return Counter(anomaly.kind for anomaly in self.anomalies)

    def __str__(self) -> str:
        head = f"{self.sent} sent, {self.acknowledged} acknowledged, {self.read} read: "
        if self.is_sound:
            return head + "sound"
        lines = [head + ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())]
        for anomaly in self.anomalies[:SHOWN_ANOMALIES]:
            place = f"partition {anomaly.partition} offset {anomaly.offset}"
            lines.append(f"  {anomaly.kind}: {place}: {anomaly.detail}")
        return "\n".join(lines)


def judge(history: History) -> Verdict:
    """Returns all anomalies. A cluster must never cause any of these kinds."""
    anomalies = [
        *_acknowledged_twice(history.sent),
        *_values(history),
        *_losses_and_duplicates(history),
        *_order(history.final),
        *_passes("final", history.final),
        *_passes("tailing", history.tailed),
        *_taken_back(history),
    ]
    acknowledged = sum(1 for _ in history.acknowledged())
    return Verdict(tuple(anomalies), len(history.sent), acknowledged, len(history.final))


def _acknowledged_twice(sent: Iterable[Sent]) -> Iterator[Anomaly]:
    places: dict[tuple[int, int], Sent] = {}
    for record in sent:
        if record.outcome != ACKNOWLEDGED or record.offset == NO_PLACE:
            continue
        first = places.setdefault((record.partition, record.offset), record)
        if first is not record:
            detail = f"{first.key} {first.number} and {record.key} {record.number}"
            yield Anomaly(ACKNOWLEDGED_TWICE, record.partition, record.offset, detail)


def _values(history: History) -> Iterator[Anomaly]:
    known = {(record.key, record.number) for record in history.sent}
    for read in history.final:
        if not read.is_intact:
            yield Anomaly(CHANGED, read.partition, read.offset, f"of key {read.key!r}")
        elif (read.key, read.number) not in known:
            yield Anomaly(INVENTED, read.partition, read.offset, f"{read.key} {read.number} was never sent")


def _losses_and_duplicates(history: History) -> Iterator[Anomaly]:
    places: dict[RecordName, list[Read]] = defaultdict(list)
    changed = {(read.partition, read.offset) for read in history.final if not read.is_intact}
    for read in history.final:
        if read.is_intact:
            places[read.key, read.number].append(read)
    for (key, number), found in places.items():
        for extra in found[1:]:
            detail = f"{key} {number} also at partition {found[0].partition} offset {found[0].offset}"
            yield Anomaly(DUPLICATED, extra.partition, extra.offset, detail)
    for record in history.acknowledged():
        at = (record.partition, record.offset)
        found = places.get((record.key, record.number), [])
        if not found and at not in changed:
            yield Anomaly(LOST, *at, f"{record.key} {record.number}")
        elif (
            found and record.offset != NO_PLACE and all((read.partition, read.offset) != at for read in found)
        ):
            detail = (
                f"{record.key} {record.number} is at partition {found[0].partition} offset {found[0].offset}"
            )
            yield Anomaly(MOVED, *at, detail)


def _order(final: Iterable[Read]) -> Iterator[Anomaly]:
    """Finds sends out of order. In the order of offsets, the numbers of a key only grow. A repeated number is
    a duplicate and does not count here.
    """
    greatest: dict[tuple[int, str], int] = {}
    seen: set[RecordName] = set()
    for read in sorted((r for r in final if r.is_intact), key=lambda r: (r.partition, r.offset)):
        if (read.key, read.number) in seen:
            continue
        seen.add((read.key, read.number))
        before = greatest.get((read.partition, read.key), -1)
        if read.number < before:
            detail = f"{read.key} {read.number} is stored after {before}"
            yield Anomaly(REORDERED, read.partition, read.offset, detail)
        greatest[read.partition, read.key] = max(read.number, before)


def _passes(name: str, reads: Sequence[Read]) -> Iterator[Anomaly]:
    last: dict[int, int] = {}
    for read in reads:
        if read.offset <= last.get(read.partition, -1):
            detail = f"after {last[read.partition]} in the {name} pass"
            yield Anomaly(REREAD, read.partition, read.offset, detail)
        last[read.partition] = read.offset


def _taken_back(history: History) -> Iterator[Anomaly]:
    stands = {(read.partition, read.offset): read for read in history.final}
    for shown in history.tailed:
        now = stands.get((shown.partition, shown.offset))
        if now != shown:
            instead = "nothing" if now is None else f"{now.key} {now.number}"
            detail = f"{shown.key} {shown.number} was shown, now {instead} is there"
            yield Anomaly(TAKEN_BACK, shown.partition, shown.offset, detail)
