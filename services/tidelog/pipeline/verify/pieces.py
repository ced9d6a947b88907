"""The layout of the ledger: the archived ranges of each partition (pieces), the gaps between them, and the
groups of pieces that share offsets. The module does no I/O.

Groups are judged together. To find the piece that contains an offset by an equality join, offsets are divided
into bins of a power of two: a join on `start <= offset < end` alone would compare each row with each range of
its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from tidelog.pipeline.tables.ledger import CommitEntry, RangeEntry
from tidelog.pipeline.verify.log_reader import LogExtent, Partition
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


@dataclass(frozen=True, slots=True)
class Group:
    """Offsets [start, end). The log now has [log_start, log_end) of them, which may be empty."""

    index: int
    topic: str
    partition: int
    start: int
    end: int
    pieces: tuple[Piece, ...]
    log_start: int
    log_end: int
    is_compacted: bool

    @property
    def is_whole(self) -> bool:
        """Returns True if the log has the whole group."""
        return self.log_start == self.start and self.log_end == self.end

    @property
    def is_gone(self) -> bool:
        return self.log_start >= self.log_end

    @property
    def entry(self) -> RangeEntry | None:
        """Returns the ledger's entry, the first one if ranges overlap, or None for a gap of the ledger."""
        return self.pieces[0].entry

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}: offsets {self.start}-{self.end - 1}"


def groups_of(pieces: Iterable[Piece], extents: Mapping[Partition, LogExtent]) -> list[Group]:
    """Groups the `pieces` of one partition, which are sorted by start."""
    together: list[list[Piece]] = []
    for piece in pieces:
        last = together[-1] if together else []
        if (
            last
            and (piece.topic, piece.partition) == (last[0].topic, last[0].partition)
            and piece.start < max(each.end for each in last)
        ):
            last.append(piece)
        else:
            together.append([piece])
    return [_group(number, found, extents) for number, found in enumerate(together)]


def _group(index: int, pieces: list[Piece], extents: Mapping[Partition, LogExtent]) -> Group:
    first = pieces[0]
    end = max(piece.end for piece in pieces)
    extent = extents.get((first.topic, first.partition))
    log_start = max(first.start, extent.start) if extent else end
    log_end = min(end, extent.end) if extent else end
    return Group(
        index,
        first.topic,
        first.partition,
        first.start,
        end,
        tuple(pieces),
        min(log_start, end),
        max(log_end, first.start),
        extent is not None and extent.is_compacted,
    )


_BINS_A_PIECE: Final = 4


class Bin(NamedTuple):
    """`piece` contains offsets of bin number `bin` (offset >> shift). `columns` belongs to the piece."""

    topic: str
    partition: int
    bin: int
    piece: int
    start: int
    end: int
    columns: int


def bins_of(pieces: Sequence[Piece]) -> tuple[int, list[Bin]]:
    """Returns the shift and the bins. The shift is the smallest one with at most about _BINS_A_PIECE bins a
    piece.
    """
    offsets = sum(piece.end - piece.start for piece in pieces)
    shift = 0
    while (offsets >> shift) > _BINS_A_PIECE * len(pieces):
        shift += 1
    bins = [
        Bin(piece.topic, piece.partition, number, piece.index, piece.start, piece.end, piece.columns)
        for piece in pieces
        for number in range(piece.start >> shift, ((piece.end - 1) >> shift) + 1)
    ]
    return shift, bins
