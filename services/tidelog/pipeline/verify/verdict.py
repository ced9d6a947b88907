"""The result of a verification."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Final

MARKER: Final = "marker"
ABORT: Final = "abort"
COMPACTION: Final = "compaction"
RETENTION: Final = "retention"
QUARANTINED: Final = "quarantined"
EXPIRED: Final = "expired"
"""The ledger recorded a hole when it was archived. The log has since deleted those offsets, so the reason is
unknown.
"""
HOLE_KINDS: Final = (MARKER, ABORT, COMPACTION, RETENTION, QUARANTINED, EXPIRED)

_NAMED_RANGES: Final = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault, as a sentence. `kind` is lost, duplicated, changed, gap, overlap, unledgered, phantom,
    unexplained, truncated, diverged, recreated, miscounted or schema.
    """

    kind: str
    text: str
    topic: str = ""
    partition: int = -1


@dataclass(slots=True)
class PartitionVerdict:
    """The result for one partition. Offsets [start, end) are archived."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    unexplained: int = 0
    holes: dict[str, int] = field(default_factory=dict)
    only_in_ledger: int = 0
    """The number of rows whose records the log no longer holds. They were compared only with the ledger's
    hash.
    """
    behind: int = 0
    """The number of offsets in the log that are not archived yet."""

    def add_holes(self, kind: str, count: int) -> None:
        if count:
            self.holes[kind] = self.holes.get(kind, 0) + count


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict is complete if there is no fault."""

    partitions: tuple[PartitionVerdict, ...]
    problems: tuple[Problem, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.partitions)

    @property
    def duplicated(self) -> int:
        return sum(each.duplicated for each in self.partitions)

    @property
    def changed(self) -> int:
        return sum(each.changed for each in self.partitions)

    @property
    def unexplained(self) -> int:
        return sum(each.unexplained for each in self.partitions)

    @property
    def holes(self) -> dict[str, int]:
        """Returns the explained holes by kind, without empty kinds."""
        found = {kind: sum(each.holes.get(kind, 0) for each in self.partitions) for kind in HOLE_KINDS}
        return {kind: count for kind, count in found.items() if count}

    @property
    def is_complete(self) -> bool:
        return not self.problems

    def line(self) -> str:
        """Returns a line with rows, lost, duplicated, changed and holes."""
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.holes.items())
        explained = sum(self.holes.values())
        told = f"{explained:,} explained" + (f" ({kinds})" if kinds else "")
        if self.unexplained:
            told += f", {self.unexplained:,} not"
        return (
            f"rows {self.rows:,}, lost {self.lost:,}, duplicated {self.duplicated:,}, "
            f"changed {self.changed:,}, holes {told}"
        )

    def to_json(self) -> str:
        body = {
            "complete": self.is_complete,
            "rows": self.rows,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "changed": self.changed,
            "holes": self.holes,
            "unexplained": self.unexplained,
            "problems": [asdict(problem) for problem in self.problems],
            "partitions": [asdict(partition) for partition in self.partitions],
        }
        return json.dumps(body, indent=2)


def offsets_text(offsets: Iterable[int]) -> str:
    """Returns the first few offsets, for example `3, 7-9, ...`."""
    ranges: list[list[int]] = []
    for offset in sorted(set(offsets)):
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_NAMED_RANGES]]
    return ", ".join([*told, "..."] if len(ranges) > _NAMED_RANGES else told)
