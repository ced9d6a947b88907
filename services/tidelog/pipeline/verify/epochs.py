"""Detects whether the log was truncated and rewritten after it was archived. The module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

Epochs = Sequence[tuple[int, int]]
"""(epoch, its first offset) in ascending order."""


class Divergence(NamedTuple):
    """Offsets [start, end) had one leader epoch when they were archived and have another one now."""

    start: int
    end: int
    archived_epoch: int
    log_epoch: int


def divergences(archived: Epochs, start: int, end: int, log: Epochs) -> list[Divergence]:
    """Returns the divergences within [start, end). Offsets whose epoch one of the sides does not know are not
    compared.
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
    """Returns the epoch at an offset, or None before the first."""
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), None)
