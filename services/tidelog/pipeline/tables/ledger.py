"""The ledger entry of one commit: the ranges of the log that it took, counted and hashed.

A Delta commit has the entry in its `userMetadata`. A commit file of plain Parquet has it beside its list of
files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidelog.model.text import JsonObject
from tidelog.pipeline.errors import PipelineError

LEDGER_FORMAT: Final = 1
_ENVELOPE: Final = "tidelog"


class LedgerError(PipelineError):
    """A ledger entry is malformed."""


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """The requested offsets [start, end) of one partition, including holes."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    first: int | None
    """The offset of the first record, or None without records. `last` is the same for the last record."""
    last: int | None
    count: int
    """The number of records, readable or not."""
    quarantined: int
    """The number of records that were sent to quarantine. The others are stored."""
    log_hash: str
    """The sum of `log_record_hash` over all records as they are in the log."""
    row_hash: str
    """The sum of `row_hash` over the stored rows, computed over the commit's columns."""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, its first offset in this range) in ascending order, or empty if the epochs are unknown."""
    skipped: str | None = None
    """The reason why the range was given up, for example retention. Such a range has no records."""

    @property
    def stored(self) -> int:
        """Returns the number of stored rows."""
        return self.count - self.quarantined

    @property
    def holes(self) -> int:
        """Returns the number of requested offsets without a record."""
        return self.end - self.start - self.count


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One batch of one archive."""

    archive: str
    batch_id: int
    columns: tuple[str, ...]
    """The sorted columns that `row_hash` covers."""
    ranges: tuple[RangeEntry, ...]
    format: int = LEDGER_FORMAT

    def to_json(self) -> str:
        return json.dumps({_ENVELOPE: asdict(self)}, separators=(",", ":"))


def entry_from_json(text: str | None) -> CommitEntry | None:
    """Parses an entry. Returns None if there is no text or the text belongs to another application. Raises
    LedgerError.
    """
    try:
        body = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get(_ENVELOPE), dict):
        return None
    fields: JsonObject = body[_ENVELOPE]
    if fields.get("format") != LEDGER_FORMAT:
        raise LedgerError(
            f"a ledger entry has format {fields.get('format')!r}, but this release reads {LEDGER_FORMAT}: "
            "use the release that wrote the table"
        )
    try:
        return CommitEntry(
            archive=str(fields["archive"]),
            batch_id=int(fields["batch_id"]),
            columns=tuple(str(column) for column in fields["columns"]),
            ranges=tuple(_range_from(each) for each in fields["ranges"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"a ledger entry is damaged: {error!r}") from error


def _range_from(fields: JsonObject) -> RangeEntry:
    return RangeEntry(
        topic=str(fields["topic"]),
        topic_id=str(fields["topic_id"]),
        partition=int(fields["partition"]),
        start=int(fields["start"]),
        end=int(fields["end"]),
        first=_optional_int(fields["first"]),
        last=_optional_int(fields["last"]),
        count=int(fields["count"]),
        quarantined=int(fields["quarantined"]),
        log_hash=str(int(fields["log_hash"])),
        row_hash=str(int(fields["row_hash"])),
        leader_epochs=tuple((int(epoch), int(start)) for epoch, start in fields["leader_epochs"]),
        skipped=None if fields["skipped"] is None else str(fields["skipped"]),
    )


def _optional_int(value: Any) -> int | None:  # a value of parsed JSON
    return None if value is None else int(value)
