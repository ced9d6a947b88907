"""The messages between the broker and its cleaning worker, as lines of JSON on pipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from tidelog.kernel.instants import WallMs
from tidelog.records.aborted import AbortedTransaction


class SourceSegment(NamedTuple):
    """A segment to be cleaned. It is never the active one, so its files do not change."""

    base_offset: int
    next_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


class LastRecord(NamedTuple):
    """The newest batch of an active producer (Kafka's `LastRecord`). The offset is -1 if that batch is a
    marker.
    """

    producer_id: int
    producer_epoch: int
    last_data_offset: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """The log to be cleaned, and the settings that apply.

    `segments` are all below `first_uncleanable_offset`, oldest first. `later_aborted` has the transactions
    that began below it and whose markers are above it. Times are in milliseconds.
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
    """A cleaned segment whose `.cleaned` files are durable. `replaces` has the base offsets of the old
    segments.
    """

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
    """The totals of a job whose segments are all written. The log is clean below `clean_offset`."""

    clean_offset: int
    bytes_read: int
    bytes_kept: int
    records_read: int
    records_kept: int
    keys: int


class CleaningFailed(NamedTuple):
    """The job ended with an error. `is_damage` says that the log is damaged, so a retry would fail."""

    reason: str
    is_damage: bool


CleaningAnswer = CleanedSegment | CleaningDone | CleaningFailed
_KINDS: Final[dict[str, Callable[..., CleaningAnswer]]] = {
    "CleanedSegment": CleanedSegment,
    "CleaningDone": CleaningDone,
    "CleaningFailed": CleaningFailed,
}


def encode_answer(answer: CleaningAnswer) -> bytes:
    return json.dumps([type(answer).__name__, *answer]).encode() + b"\n"


def decode_answer(line: bytes) -> CleaningAnswer:
    """Raises ValueError for a line that is not an answer."""
    try:
        kind, *fields = json.loads(line)
        answer = _KINDS[kind](*fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"invalid answer of the cleaning worker: {line[:200]!r}") from error
    if isinstance(answer, CleanedSegment):
        answer = answer._replace(replaces=tuple(answer.replaces))
    return answer
