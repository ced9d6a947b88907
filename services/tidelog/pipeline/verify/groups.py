"""Groups pieces that share offsets, which are judged together. All others are judged alone. The module does
no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.pipeline.ledger.entry import RangeEntry
from tidelog.pipeline.verify.log_reader import LogExtent, Partition
from tidelog.pipeline.verify.pieces import Piece


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
