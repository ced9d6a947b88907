"""Finds the piece that contains an offset by an equality join: offsets are divided into bins of a power of
two. The module does no I/O.

A join on `start <= offset < end` alone would compare each row with each range of its partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog.pipeline.verify.pieces import Piece

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
