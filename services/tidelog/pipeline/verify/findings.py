"""The counts that the judge uses, as values. The module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MISSING: Final = "missing"
COPIES: Final = "copies"
CHANGED: Final = "changed"
GONE: Final = "gone"
EXPIRED: Final = "expired"
IN_QUARANTINE: Final = "in_quarantine"
NO_ROWS: Final = "0"


@dataclass(slots=True)
class RowFaults:
    """The faults of one group, counted in offsets except for copies, which counts the rows beyond the first
    of a record. missing: a record without a row. changed: a row that differs from the record. gone: a row
    whose record the log lacks, although the log reaches that offset. expired: a row at an offset that the log
    does not reach. in_quarantine: a record without a row that was found in the quarantine topic; it is not
    missing.
    """

    rows: int = 0
    records: int = 0
    missing: int = 0
    copies: int = 0
    changed: int = 0
    gone: int = 0
    expired: int = 0
    in_quarantine: int = 0
    offsets: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PieceSums:
    """`own` is comparable with the ledger and `common` with the other side. `common` covers what both sides
    have of a record, which includes its value only in a table of raw values.
    """

    count: int = 0
    own: str = NO_ROWS
    common: str = NO_ROWS


@dataclass(frozen=True, slots=True)
class Strays:
    """Rows of one partition that no piece covers, from `first` to `last`."""

    topic: str | None
    partition: int | None
    count: int
    first: int | None
    last: int | None


@dataclass(slots=True)
class Findings:
    """The counts. Keys are the indexes of pieces (for sums) and of groups."""

    table: Mapping[int, PieceSums] = field(default_factory=dict)
    log: Mapping[int, PieceSums] = field(default_factory=dict)
    strays: Iterable[Strays] = ()
    faults: Mapping[int, RowFaults] = field(default_factory=dict)
    holes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    knows_quarantine: bool = False
    """True if the quarantine topic was read. Otherwise the ledger is trusted."""
    gone: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
