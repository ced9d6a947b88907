"""The layout of the ledger: the archived ranges of each partition and the gaps between them. The module does
no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tidelog.pipeline.ledger.entry import CommitEntry, RangeEntry
from tidelog.pipeline.verify.verdict import Problem


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end) of a partition. `entry` is None for a gap between ranges of the ledger.

    `columns` is an index of Layout.column_sets. `overlaps` is True if another range of the ledger shares some
    of its offsets.
    """

    index: int
    topic: str
    partition: int
    start: int
    end: int
    entry: RangeEntry | None
    columns: int = 0
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    pieces: tuple[Piece, ...]
    column_sets: tuple[tuple[str, ...], ...]
    problems: tuple[Problem, ...]

    def spans(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the first and the last archived offset (exclusive) of each partition."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for piece in self.pieces:
            start, end = found.get((piece.topic, piece.partition), (piece.start, piece.end))
            found[piece.topic, piece.partition] = min(start, piece.start), max(end, piece.end)
        return found

    def topic_ids(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for piece in self.pieces:
            if piece.entry is not None:
                found.setdefault(piece.topic, set()).add(piece.entry.topic_id)
        return found


@dataclass(frozen=True, slots=True)
class _Written:
    """A range and the commit that wrote it."""

    range: RangeEntry
    commit: CommitEntry

    def __str__(self) -> str:
        return f"batch {self.commit.batch_id} of archive {self.commit.archive}"


def layout_of(ledger: Sequence[CommitEntry]) -> Layout:
    """Returns the layout. Empty ranges, for which nothing was requested, are left out."""
    column_sets = sorted({commit.columns for commit in ledger})
    written = sorted(
        (_Written(each, commit) for commit in ledger for each in commit.ranges if each.end > each.start),
        key=lambda one: (one.range.topic, one.range.partition, one.range.start, one.range.end),
    )
    pieces: list[Piece] = []
    problems: list[Problem] = []
    for (topic, partition), group in groupby(written, key=lambda one: (one.range.topic, one.range.partition)):
        ranges = list(group)
        overlapping = _overlapping(ranges, problems)
        end = ranges[0].range.start
        for number, one in enumerate(ranges):
            if one.range.start > end:
                pieces.append(Piece(len(pieces), topic, partition, end, one.range.start, None))
                problems.append(_gap(topic, partition, end, one.range.start))
            end = max(end, one.range.end)
            columns = column_sets.index(one.commit.columns)
            pieces.append(
                Piece(
                    len(pieces),
                    topic,
                    partition,
                    one.range.start,
                    one.range.end,
                    one.range,
                    columns,
                    number in overlapping,
                )
            )
    problems += _recreated(written)
    return Layout(tuple(pieces), tuple(column_sets), tuple(problems))


def _overlapping(ranges: Sequence[_Written], problems: list[Problem]) -> set[int]:
    """Returns the indexes of ranges that share offsets, for one partition sorted by start."""
    found: set[int] = set()
    furthest = 0
    for number in range(1, len(ranges)):
        before, one = ranges[furthest], ranges[number]
        if one.range.start < before.range.end:
            found |= {furthest, number}
            last = min(before.range.end, one.range.end) - 1
            text = (
                f"{one.range.topic}-{one.range.partition}: offsets {one.range.start}-{last} "
                f"were archived twice, by {before} and by {one}"
            )
            problems.append(Problem("overlap", text, one.range.topic, one.range.partition))
        if one.range.end > before.range.end:
            furthest = number
    return found


def _gap(topic: str, partition: int, start: int, end: int) -> Problem:
    text = f"{topic}-{partition}: no ledger entry covers offsets {start}-{end - 1}"
    return Problem("gap", text, topic, partition)


def _recreated(written: Iterable[_Written]) -> list[Problem]:
    ids: dict[str, set[str]] = {}
    for one in written:
        ids.setdefault(one.range.topic, set()).add(one.range.topic_id)
    return [
        Problem(
            "recreated",
            f"{topic}: the ledger holds {len(found)} topics of this name: " + ", ".join(sorted(found)),
            topic,
        )
        for topic, found in sorted(ids.items())
        if len(found) > 1
    ]
