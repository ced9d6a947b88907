"""What the broker asks of its cleaning worker, and what that answers: lines of JSON over pipes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tidelog.broker.log.transaction_index import AbortedTransaction
from tidelog.model.instants import WallMs


class SourceSegment(NamedTuple):
    """A segment as it is to be cleaned: never the active one, so its files stand still."""

    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


class LastRecord(NamedTuple):
    """The newest batch of a producer that is still remembered (Kafka's `LastRecord`); offset -1: a marker."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """`segments` are all below `first_uncleanable_offset`, the oldest first. `later_aborted` began below it,
    but their markers lie beyond. Times in milliseconds.
    """

    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: WallMs
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    dedupe_buffer_bytes: int
    dedupe_buffer_load_factor: float
    io_buffer_bytes: int
    max_bytes_per_second: float
    last_records: tuple[LastRecord, ...] = ()
    later_aborted: tuple[AbortedTransaction, ...] = ()

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> CleaningJob:
        fields = json.loads(line)
        fields["segments"] = tuple(SourceSegment(*row) for row in fields["segments"])
        fields["last_records"] = tuple(LastRecord(*row) for row in fields["last_records"])
        fields["later_aborted"] = tuple(AbortedTransaction(*row) for row in fields["later_aborted"])
        return cls(**fields)


class CleanedSegment(NamedTuple):
    """`.cleaned` files lie on disk, fsynced, to take the place of the segments that begin at `replaces`."""

    replaces: tuple[int, ...]
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int
    offset_of_max_timestamp: int
    first_timestamp: int
    offset_index_entries: int
    time_index_entries: int


class CleaningDone(NamedTuple):
    """All segments were written: below `clean_offset` the log is clean. What was read, and what stayed."""

    clean_offset: int
    bytes_read: int
    bytes_kept: int
    records_read: int
    records_kept: int
    keys: int


class CleaningFailed(NamedTuple):
    """Nothing more comes for this job. `is_damage`: not the disk's momentary trouble, but what lies on it."""

    reason: str
    is_damage: bool


CleaningAnswer = CleanedSegment | CleaningDone | CleaningFailed
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (CleanedSegment, CleaningDone, CleaningFailed)}


def encode_answer(answer: CleaningAnswer) -> bytes:
    return json.dumps([type(answer).__name__, *answer]).encode() + b"\n"


def decode_answer(line: bytes) -> CleaningAnswer:
    """Raises ValueError for what no worker writes."""
    try:
        kind, *fields = json.loads(line)
        answer: CleaningAnswer = _KINDS[kind](*fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the cleaning worker says {line[:200]!r}") from error
    if isinstance(answer, CleanedSegment):
        answer = answer._replace(replaces=tuple(answer.replaces))
    return answer
