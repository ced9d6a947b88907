"""Turns counts and hashes, which are the findings, into a verdict. The module does no I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.model.topics import parse_topic_id
from tidelog.pipeline.tables.ledger import RangeEntry
from tidelog.pipeline.verify.log_reader import Epochs, LogExtent, Partition, divergences
from tidelog.pipeline.verify.pieces import Group, Layout
from tidelog.pipeline.verify.verdict import (
    ABORT,
    COMPACTION,
    EXPIRED,
    MARKER,
    QUARANTINED,
    RETENTION,
    PartitionVerdict,
    Problem,
    Verdict,
    offsets_text,
)

MISSING: Final = "missing"
COPIES: Final = "copies"
CHANGED: Final = "changed"
GONE: Final = "gone"
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


def is_suspicious(group: Group, findings: Findings) -> bool:
    """Returns True if the group must be compared row by row. Returns False only if its sums alone prove it
    correct.
    """
    entry = group.entry
    rows = findings.table.get(group.pieces[0].index, PieceSums())
    records = findings.log.get(group.pieces[0].index, PieceSums())
    if len(group.pieces) > 1:
        return True
    if entry is None or entry.skipped is not None:
        return rows.count + records.count > 0
    if (rows.count, rows.own) != (entry.stored, entry.row_hash):
        return True
    if group.is_gone:
        return False  # only the ledger's hash is available
    if not group.is_whole or entry.quarantined:
        return True
    return (records.count, records.own) != (entry.count, entry.log_hash) or rows.common != records.common


class Judge:
    """Builds the verdict. Each check adds to it."""

    def __init__(
        self, layout: Layout, groups: Iterable[Group], extents: Mapping[Partition, LogExtent], place: str
    ) -> None:
        self._groups = list(groups)
        self._extents = extents
        self._place = place
        self._problems = list(layout.problems)
        self._topic_ids = layout.topic_ids()
        self._partitions = {
            key: PartitionVerdict(*key, start, end) for key, (start, end) in layout.spans().items()
        }

    def verdict(self, findings: Findings, epochs: Mapping[Partition, Epochs]) -> Verdict:
        self._check_log(epochs)
        for group in self._groups:
            self._check_group(group, findings)
        for stray in findings.strays:
            self._check_stray(stray)
        partitions = sorted(self._partitions.values(), key=lambda each: (each.topic, each.partition))
        return Verdict(tuple(partitions), tuple(self._problems))

    def _say(self, kind: str, group: Group, text: str) -> None:
        self._problems.append(Problem(kind, f"{group.name}: {text}", group.topic, group.partition))

    # -- the whole log

    def _check_log(self, epochs: Mapping[Partition, Epochs]) -> None:
        for key, partition in self._partitions.items():
            extent = self._extents.get(key)
            name = f"{partition.topic}-{partition.partition}"
            if extent is None:
                text = (
                    f"{name}: {self._place} have no such partition, so rows were compared only with the "
                    "ledger"
                )
                self._problems.append(Problem("no_log", text, *key))
                continue
            partition.behind = max(0, extent.end - max(partition.end, extent.start))
            if extent.end < partition.end:
                text = (
                    f"{name}: archived up to offset {partition.end - 1}, but {self._place} end before "
                    f"{extent.end}: the log was truncated, or it is an older copy"
                )
                self._problems.append(Problem("truncated", text, *key))
        self._check_topic_ids()
        for group in self._groups:
            self._check_epochs(group, epochs.get((group.topic, group.partition), ()))

    def _check_topic_ids(self) -> None:
        now: dict[str, set[uuid.UUID]] = {}
        for (topic, _), extent in self._extents.items():
            if extent.topic_id is not None:
                now.setdefault(topic, set()).add(topic_uuid(extent.topic_id))
        for topic, archived in sorted(self._topic_ids.items()):
            known = {topic_uuid(text) for text in archived}
            others = now.get(topic, set()) - known
            if others:
                text = (
                    f"{topic}: the table was made from topic id {', '.join(sorted(map(str, known)))}, but "
                    f"{self._place} have {', '.join(sorted(map(str, others)))}: the topic was created again"
                )
                self._problems.append(Problem("recreated", text, topic))

    def _check_epochs(self, group: Group, log: Epochs) -> None:
        for piece in group.pieces:
            start, end = max(piece.start, group.log_start), min(piece.end, group.log_end)
            if piece.entry is None or start >= end:
                continue
            for found in divergences(piece.entry.leader_epochs, start, end, log):
                self._say(
                    "diverged",
                    group,
                    f"{found.start}-{found.end - 1} had leader epoch {found.archived_epoch} when they were "
                    "archived "
                    f"and have {found.log_epoch} in the log: the log was truncated and rewritten",
                )

    # -- one group

    def _check_group(self, group: Group, findings: Findings) -> None:
        partition = self._partitions[group.topic, group.partition]
        faults = findings.faults.get(group.index)
        if faults is None:
            partition.rows += findings.table.get(group.pieces[0].index, PieceSums()).count
            if group.is_gone and group.entry is not None:
                partition.only_in_ledger += group.entry.stored
        else:
            partition.rows += faults.rows
            self._check_rows(group, faults, findings, partition)
            if len(group.pieces) == 1 and group.entry is not None:
                self._check_with_ledger(group, group.entry, faults, findings, partition)
        if group.entry is None:
            if faults is not None and faults.rows:
                self._say("unledgered", group, f"{faults.rows:,} rows that no ledger entry covers")
            return
        quarantined = _quarantined(group)
        if findings.knows_quarantine and group.is_whole and faults is not None:
            quarantined = faults.in_quarantine
        partition.add_holes(QUARANTINED, quarantined)
        self._explain_holes(group, findings.holes.get(group.index, {}), partition)

    def _check_rows(
        self, group: Group, faults: RowFaults, findings: Findings, partition: PartitionVerdict
    ) -> None:
        quarantined = _on_trust(group, findings)
        lost = max(0, faults.missing - quarantined)
        if lost:
            partition.lost += lost
            among = f" ({quarantined:,} in quarantine, according to the ledger)" if quarantined else ""
            if findings.knows_quarantine and _quarantined(group):
                among = ", and they are not in quarantine"
            self._say("lost", group, f"no row of {_named(faults, MISSING, faults.missing)}{among}")
        if faults.copies:
            partition.duplicated += faults.copies
            self._say("duplicated", group, f"extra rows of {_named(faults, COPIES, faults.copies)}")
        if faults.changed:
            partition.changed += faults.changed
            self._say(
                "changed", group, f"rows that differ from the log's {_named(faults, CHANGED, faults.changed)}"
            )
        if faults.gone:
            self._check_gone(group, faults, findings.gone.get(group.index, {}), partition)
        partition.only_in_ledger += faults.expired

    def _check_gone(
        self, group: Group, faults: RowFaults, kinds: Mapping[int, str], partition: PartitionVerdict
    ) -> None:
        named = faults.offsets.get(GONE, [])
        phantoms = {offset: kind for offset, kind in kinds.items() if kind in (MARKER, ABORT)}
        if phantoms:
            text = f"rows of offsets {offsets_text(phantoms)}, where the log has markers or aborted records"
            self._say("phantom", group, text)
        compacted = faults.gone - len(phantoms)
        if group.is_compacted:
            partition.only_in_ledger += compacted
        elif compacted:
            others = [offset for offset in named if offset not in phantoms]
            self._say(
                "truncated",
                group,
                f"{compacted:,} rows whose records the log lost: {offsets_text(others)}",
            )

    def _check_with_ledger(
        self,
        group: Group,
        entry: RangeEntry,
        faults: RowFaults,
        findings: Findings,
        partition: PartitionVerdict,
    ) -> None:
        """Checks for faults that the log does not show, because it may be deleted or may not hold the decoded
        values.
        """
        piece = group.pieces[0].index
        rows, records = findings.table.get(piece, PieceSums()), findings.log.get(piece, PieceSums())
        different = faults.rows - faults.copies
        lost_in_log = max(0, faults.missing - _on_trust(group, findings))
        lost = entry.stored - different - lost_in_log
        if lost > 0:
            partition.lost += lost
            self._say(
                "lost",
                group,
                f"{lost:,} rows fewer than the ledger says, and the log does not hold their records",
            )
        if different > entry.stored:
            self._say(
                "miscounted",
                group,
                f"{different - entry.stored:,} rows more than the ledger says were written",
            )
        is_told = (
            lost > 0
            or lost_in_log
            or faults.copies
            or faults.changed
            or (faults.gone and not group.is_compacted)
            or different > entry.stored
        )
        if rows.own != entry.row_hash and not is_told:
            partition.changed += 1
            self._say(
                "changed",
                group,
                "at least one row differs from what was written, although its record's key and headers are "
                "equal",
            )
        is_comparable = group.is_whole and not (group.is_compacted and records.count < entry.count)
        if is_comparable and not is_told and (records.count, records.own) != (entry.count, entry.log_hash):
            self._say(
                "diverged",
                group,
                f"the log has {records.count:,} records, but the ledger {entry.count:,}",
            )

    def _explain_holes(self, group: Group, in_log: Mapping[str, int], partition: PartitionVerdict) -> None:
        entries = [piece.entry for piece in group.pieces if piece.entry is not None]
        skipped = [entry for entry in entries if entry.skipped is not None]
        for entry in skipped:
            partition.add_holes(RETENTION, entry.end - entry.start)
        if skipped or len(entries) > 1:
            return  # for overlapping ranges, it is unknown which holes are the same
        holes = entries[0].holes
        if holes < 0:
            self._say("miscounted", group, f"the ledger counts {entries[0].count:,} records in fewer offsets")
            return
        for kind in (MARKER, ABORT):
            partition.add_holes(kind, min(holes, in_log.get(kind, 0)))
            holes -= in_log.get(kind, 0)
        if holes <= 0:
            if holes < 0:
                self._say("phantom", group, f"the ledger counts {-holes:,} records where the log has none")
            return
        if not group.is_whole:
            partition.add_holes(EXPIRED, holes)
        elif group.is_compacted:
            partition.add_holes(COMPACTION, holes)
        else:
            partition.unexplained += holes
            self._say(
                "unexplained",
                group,
                f"{holes:,} offsets without a record, for a reason that the log does not show",
            )

    def _check_stray(self, stray: Strays) -> None:
        key = (stray.topic or "", -1 if stray.partition is None else stray.partition)
        partition = self._partitions.setdefault(
            key, PartitionVerdict(*key, stray.first or 0, stray.first or 0)
        )
        partition.rows += stray.count
        text = (
            f"{key[0]}-{key[1]}: {stray.count:,} rows at offsets {stray.first}-{stray.last} "
            "that no ledger entry covers"
        )
        self._problems.append(Problem("unledgered", text, *key))


def _quarantined(group: Group) -> int:
    """Returns the records that went to quarantine according to the ledger. Overlapping ranges share the same
    records.
    """
    return max((piece.entry.quarantined for piece in group.pieces if piece.entry), default=0)


def _on_trust(group: Group, findings: Findings) -> int:
    """Returns the records that may lack a row because the ledger says that they went to quarantine."""
    return 0 if findings.knows_quarantine else _quarantined(group)


def _named(faults: RowFaults, kind: str, count: int) -> str:
    told = offsets_text(faults.offsets.get(kind, []))
    return f"{count:,} records, offsets {told}" if told else f"{count:,} records"


def topic_uuid(text: str) -> uuid.UUID:
    """Parses an id in Kafka's or in the usual form. Raises ValueError."""
    return uuid.UUID(text) if len(text) > 24 else parse_topic_id(text)
