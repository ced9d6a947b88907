"""What one commit says about itself: the ranges of the log it took, counted and hashed.

A Delta commit carries it as its `userMetadata`, a commit file of plain Parquet beside its list of files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidelog.pipeline.errors import PipelineError

LEDGER_FORMAT: Final = 1
_ENVELOPE: Final = "tidelog"


class LedgerError(PipelineError):
    """An entry that can't be read."""


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """Offsets [start, end) of one partition, those asked for: holes are included."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    first: int | None
    """Offset of the first record seen; None without any. So is `last`."""
    last: int | None
    count: int
    """Records seen, readable or not."""
    quarantined: int
    """Those of them that went to quarantine; the others are stored."""
    log_hash: str
    """Of all records seen, as in the log: the sum of `record_hash`."""
    row_hash: str
    """Of the rows stored: the sum of `row_hash` over the commit's columns."""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, its first offset in this range), ascending; empty if unknown."""
    skipped: str | None = None
    """Why the range was given up, e.g. lost to retention; it has no records then."""

    @property
    def stored(self) -> int:
        """Rows in the table."""
        return self.count - self.quarantined

    @property
    def holes(self) -> int:
        """Offsets asked for at which there was no record to see."""
        return self.end - self.start - self.count


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One batch of one archive."""

    archive: str
    batch_id: int
    columns: tuple[str, ...]
    """Those `row_hash` is over; sorted."""
    ranges: tuple[RangeEntry, ...]
    format: int = LEDGER_FORMAT

    def to_json(self) -> str:
        return json.dumps({_ENVELOPE: asdict(self)}, separators=(",", ":"))


def entry_from_json(text: str | None) -> CommitEntry | None:
    """None if the text is somebody else's (or there is none). Raises LedgerError."""
    try:
        body = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get(_ENVELOPE), dict):
        return None
    fields: Mapping[str, Any] = body[_ENVELOPE]
    if fields.get("format") != LEDGER_FORMAT:
        raise LedgerError(
            f"a ledger entry has format {fields.get('format')!r}, this release reads {LEDGER_FORMAT}: "
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


def _range_from(fields: Mapping[str, Any]) -> RangeEntry:
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


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)
