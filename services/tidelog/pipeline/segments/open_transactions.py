"""Finds the transactions that are open at an offset, from a producer snapshot and the batches after it. The
module does no I/O.

The source is Kafka's `ProducerStateManager`. The last stable offset is the first offset of the oldest open
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.partition.producer_snapshot import SnapshotEntry
from tidelog.pipeline.segments.layout import AbortedRange
from tidelog.records.batch import BatchHeader
from tidelog.records.control import EndTransactionMarker


class OpenTransactions:
    """`aborted` holds the transactions that were seen to abort."""

    __slots__ = ("_first_offsets", "aborted")

    def __init__(self, snapshot: Iterable[SnapshotEntry] = ()) -> None:
        # The newest entry of a producer id counts, because tidelog writes several.
        self._first_offsets = {
            producer_id: first_offset
            for producer_id, first_offset in {e.producer_id: e.txn_first_offset for e in snapshot}.items()
            if first_offset >= 0
        }
        self.aborted: list[AbortedRange] = []

    def copy(self) -> OpenTransactions:
        same = OpenTransactions()
        same._first_offsets = dict(self._first_offsets)
        same.aborted = list(self.aborted)
        return same

    def see(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> None:
        """Processes the next batch of the log. `marker` is set for a control batch with an end marker."""
        if header.is_control:
            if marker is None:
                return
            first_offset = self._first_offsets.pop(header.producer_id, None)
            if first_offset is not None and not marker.is_commit:
                self.aborted.append(AbortedRange(header.producer_id, first_offset, header.last_offset))
        elif header.is_transactional:
            self._first_offsets.setdefault(header.producer_id, header.base_offset)

    def first_offset(self) -> int | None:
        """Returns the first offset of the oldest open transaction."""
        return min(self._first_offsets.values(), default=None)
