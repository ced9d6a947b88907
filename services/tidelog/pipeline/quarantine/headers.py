"""The headers that describe a quarantined record, beside its own headers. The module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.records.record import Record
from tidelog.records.record_writer import Header

PREFIX: Final = "tidelog.error."
REASON: Final = f"{PREFIX}reason"
TOPIC: Final = f"{PREFIX}topic"
PARTITION: Final = f"{PREFIX}partition"
OFFSET: Final = f"{PREFIX}offset"
TIMESTAMP: Final = f"{PREFIX}timestamp"
ARCHIVE: Final = f"{PREFIX}archive"
LEFT_OUT_BYTES: Final = f"{PREFIX}left.out.bytes"
"""The size of a value that is too large for the quarantine topic. The value exists only at its origin."""
REPLAYED: Final = f"{PREFIX}replayed"
"""Marks a record of the quarantine that only notes that the origin in its other headers was put back."""


class Origin(NamedTuple):
    """Where a quarantined record came from. The origin identifies the record, however often it was sent."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """`headers` are the original's. If `left_out_bytes` is None, the value is present."""

    origin: Origin
    timestamp: int
    reason: str
    archive: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    left_out_bytes: int | None = None


def quarantined_of(record: Record) -> Quarantined | None:
    """Parses a record. Returns None if it is not a quarantined record, or if it is the note of a replay."""
    ours = _ours(record.headers)
    origin = _origin_of(ours)
    if origin is None or REPLAYED in ours:
        return None
    return Quarantined(
        origin,
        _number(ours.get(TIMESTAMP), record.timestamp),
        ours.get(REASON, ""),
        ours.get(ARCHIVE, ""),
        record.key,
        record.value,
        own_headers(record.headers),
        _number(ours[LEFT_OUT_BYTES], 0) if LEFT_OUT_BYTES in ours else None,
    )


def replayed_origin(record: Record) -> Origin | None:
    """Returns the origin in the note of a replay, or None for any other record."""
    ours = _ours(record.headers)
    return _origin_of(ours) if REPLAYED in ours else None


def note_of(quarantined: Quarantined, now_ms: int) -> Record:
    """Returns the note that is written to the quarantine in the transaction that puts the record back."""
    origin = quarantined.origin
    headers = (
        (REPLAYED, str(now_ms).encode()),
        (TOPIC, origin.topic.encode()),
        (PARTITION, str(origin.partition).encode()),
        (OFFSET, str(origin.offset).encode()),
    )
    return Record(0, now_ms, quarantined.key, None, headers)


def own_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Returns the headers without those of the quarantine."""
    return tuple(header for header in headers if not header[0].startswith(PREFIX))


def _ours(headers: Sequence[Header]) -> dict[str, str]:
    return {
        name: (value or b"").decode(errors="replace") for name, value in headers if name.startswith(PREFIX)
    }


def _origin_of(ours: dict[str, str]) -> Origin | None:
    partition, offset = _number(ours.get(PARTITION), -1), _number(ours.get(OFFSET), -1)
    if not ours.get(TOPIC) or partition < 0 or offset < 0:
        return None
    return Origin(ours[TOPIC], partition, offset)


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
