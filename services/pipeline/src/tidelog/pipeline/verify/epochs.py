"""Was the log that the table was made from truncated and written anew since? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

Epochs = Sequence[tuple[int, int]]
"""(epoch, its first offset), rising."""


class Divergence(NamedTuple):
    """Offsets [start, end) were written in one leader epoch when archived, and in another one today."""

    start: int
    end: int
    archived_epoch: int
    log_epoch: int


def divergences(archived: Epochs, start: int, end: int, log: Epochs) -> list[Divergence]:
    """Of the offsets [start, end), all of which both sides know. A side that doesn't know its epochs at an
    offset is not compared there.
    """
    cuts = sorted({start, end, *(at for _, at in [*archived, *log] if start < at < end)})
    found: list[Divergence] = []
    for piece_start, piece_end in pairwise(cuts):
        was, now = epoch_at(archived, piece_start), epoch_at(log, piece_start)
        if was is None or now is None or was == now:
            continue
        if found and found[-1].end == piece_start and found[-1][2:] == (was, now):
            found[-1] = found[-1]._replace(end=piece_end)
        else:
            found.append(Divergence(piece_start, piece_end, was, now))
    return found


def epoch_at(epochs: Epochs, offset: int) -> int | None:
    """None before the first."""
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), None)
