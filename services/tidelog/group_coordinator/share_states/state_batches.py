"""The delivery states of ranges of records, and the rule by which ranges are combined."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

NO_OFFSET: Final = -1


class StateBatch(NamedTuple):
    """The delivery state and count of the records from `first_offset` to `last_offset`. They are not
    delivered before `available_at_ms`, a time of day, or 0 if they do not wait (ADR 0053).
    """

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_at_ms: int = 0


StateBatches = tuple[StateBatch, ...]
"""Batches in the order of their offsets, without overlaps. Neighbours with equal states are one batch."""


def combine(batches: Iterable[StateBatch], start_offset: int) -> StateBatches:
    """Returns one state for each offset of the batches, without the offsets below `start_offset`.

    Where batches overlap, the highest delivery count wins, and among equal counts the highest delivery state
    (Kafka's `PersisterStateBatchCombiner`). A delivery count never falls and a final state has the highest
    number, so this is the latest state, also if an older request arrives again. Among equal states, the
    latest time wins. Batches that end before they start are ignored.
    """
    pending = sorted(
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= max(start_offset, batch.first_offset)
    )
    cuts = sorted({batch.first_offset for batch in pending} | {batch.last_offset + 1 for batch in pending})
    combined: list[StateBatch] = []
    covering: list[tuple[int, int, int, int]] = []
    """A heap of the batches that have begun: (-count, -state, -time, last offset)."""
    at = 0
    for first, end in itertools.pairwise(cuts):
        while at < len(pending) and pending[at].first_offset == first:
            begun = pending[at]
            rank = -begun.delivery_count, -begun.delivery_state, -begun.available_at_ms
            heapq.heappush(covering, (*rank, begun.last_offset))
            at += 1
        while covering and covering[0][3] < first:
            heapq.heappop(covering)
        if covering:
            count, state, at_ms, _ = covering[0]
            _append(combined, StateBatch(first, end - 1, -state, -count, -at_ms))
    return tuple(combined)


def _append(combined: list[StateBatch], batch: StateBatch) -> None:
    """Adds the batch, or extends the last one if they are neighbours with the same state."""
    if combined:
        last = combined[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            combined[-1] = last._replace(last_offset=batch.last_offset)
            return
    combined.append(batch)
