"""Which piece an offset belongs to, as an equality join: offsets are put into bins of a power of two. Pure.

A join on `start <= offset < end` alone would compare each row with each range of its partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.pipeline.verify.pieces import Piece

_BINS_A_PIECE: Final = 4


class Bin(NamedTuple):
    """`piece` holds offsets of bin number `bin` (offset >> shift); `columns` is the piece's."""

    topic: str
    partition: int
    bin: int
    piece: int
    start: int
    end: int
    columns: int


def bins_of(pieces: Sequence[Piece]) -> tuple[int, list[Bin]]:
    """The shift, the smallest for which there are about _BINS_A_PIECE bins a piece at most; and the bins."""
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
