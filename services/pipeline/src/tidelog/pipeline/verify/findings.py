"""What was counted, as values: the judge's evidence. Pure."""

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
    """Of one group, in offsets but for copies: rows beyond the first of a record. missing: a record without
    a row; changed: a row that differs from the record; gone: a row whose record the log lacks, though it
    reaches there; expired: one where the log doesn't reach; in_quarantine: a record without a row that was
    found in the quarantine topic, and isn't missing.
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
    """`own` is comparable with the ledger, `common` with the other side: over all of a record that both have,
    its value only in a table of raw values."""

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
    """What was counted; keys are the indexes of pieces (sums) and groups."""

    table: Mapping[int, PieceSums] = field(default_factory=dict)
    log: Mapping[int, PieceSums] = field(default_factory=dict)
    strays: Iterable[Strays] = ()
    faults: Mapping[int, RowFaults] = field(default_factory=dict)
    holes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    knows_quarantine: bool = False
    """Was the quarantine topic read? Else the ledger's word is taken."""
    gone: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
