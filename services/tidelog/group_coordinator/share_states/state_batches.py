"""The delivery states of ranges of records, and the rule by which ranges are combined."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
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


CHANGES_WORTH_A_SEARCH: Final = 4
"""If there are more changes than one for so many batches, combining all is faster than finding neighbours."""
_FIRST_OFFSET: Final = attrgetter("first_offset")
_LAST_OFFSET: Final = attrgetter("last_offset")


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


def with_changes(batches: StateBatches, changes: StateBatches, start_offset: int) -> StateBatches:
    """Returns what `combine` returns for both together, of which each is combined already. Only the batches
    that changes overlap or touch are combined again, because a share partition may have thousands of others.
    """
    batches, changes = _from_offset(batches, start_offset), _from_offset(changes, start_offset)
    if not changes or not batches:
        return changes or batches
    if len(changes) > len(batches) // CHANGES_WORTH_A_SEARCH:
        return combine((*batches, *changes), start_offset)
    found: list[StateBatch] = []
    done = at = 0
    while at < len(changes):
        begin = bisect_left(batches, changes[at].first_offset - 1, done, key=_LAST_OFFSET)
        end = bisect_right(batches, changes[at].last_offset + 1, begin, key=_FIRST_OFFSET)
        until = at + 1
        while until < len(changes):
            reached = changes[until - 1].last_offset
            if begin < end:
                reached = max(reached, batches[end - 1].last_offset)
            if reached < changes[until].first_offset - 1:
                break
            end = bisect_right(batches, changes[until].last_offset + 1, end, key=_FIRST_OFFSET)
            until += 1
        found += batches[done:begin]
        found += combine((*batches[begin:end], *changes[at:until]), start_offset)
        done, at = end, until
    found += batches[done:]
    return tuple(found)


def _from_offset(batches: StateBatches, start_offset: int) -> StateBatches:
    """Returns combined batches without the offsets below `start_offset`."""
    kept = batches[bisect_left(batches, start_offset, key=_LAST_OFFSET) :]
    if kept and kept[0].first_offset < start_offset:
        return (kept[0]._replace(first_offset=start_offset), *kept[1:])
    return kept


def _append(combined: list[StateBatch], batch: StateBatch) -> None:
    """Adds the batch, or extends the last one if they are neighbours with the same state."""
    if combined:
        last = combined[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            combined[-1] = last._replace(last_offset=batch.last_offset)
            return
    combined.append(batch)
