"""Finds the batches of aborted transactions, and the markers that are no longer needed.

Source: Kafka's `CleanedTransactionMetadata`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tidelog.log_format.directory import TRANSACTION_INDEX_SUFFIX, file_name
from tidelog.log_format.entries import decode_aborted_transactions
from tidelog.records.aborted import AbortedTransaction


class AbortedTransactions:
    """The transaction indexes of the segments of one log.

    Each index is read when it is first needed, and kept for the job because it is small.
    """

    def __init__(
        self, directory: str, base_offsets: Sequence[int], later: Sequence[AbortedTransaction] = ()
    ) -> None:
        self._directory = directory
        self._base_offsets = base_offsets
        self._later = later  # from segments that are not cleaned
        self._by_base: dict[int, list[AbortedTransaction]] = {}

    def between(self, start_offset: int, end_offset: int) -> Iterator[AbortedTransaction]:
        """Yields the transactions that overlap [start, end), also those whose marker is in a later segment.

        Raises OSError, CorruptFileError.
        """
        at = max(0, bisect_right(self._base_offsets, start_offset) - 1)
        for base_offset in self._base_offsets[at:]:
            for transaction in self._of(base_offset):
                if transaction.last_offset >= start_offset and transaction.first_offset < end_offset:
                    yield transaction
                if transaction.last_stable_offset >= end_offset:
                    return
        for transaction in self._later:
            if transaction.first_offset < end_offset:
                yield transaction

    def _of(self, base_offset: int) -> list[AbortedTransaction]:
        found = self._by_base.get(base_offset)
        if found is None:
            try:
                content = Path(self._directory, file_name(base_offset, TRANSACTION_INDEX_SUFFIX)).read_bytes()
            except FileNotFoundError:
                content = b""
            found = self._by_base[base_offset] = decode_aborted_transactions(content, base_offset)
        return found


class TransactionProgress:
    """The transactions at one point of a log, whose batches are passed to this object in order.

    `kept_aborted` has the aborted transactions of which the log still had batches. They belong in the index
    of the cleaned segment that receives their markers.
    """

    def __init__(self) -> None:
        self._upcoming: list[tuple[int, AbortedTransaction]] = []  # heap, ordered by first offset
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()  # producers with a batch in the log
        self._ongoing_committed: set[int] = set()
        self.kept_aborted: list[AbortedTransaction] = []

    def expect(self, transactions: Iterable[AbortedTransaction]) -> None:
        for transaction in transactions:
            heapq.heappush(self._upcoming, (transaction.first_offset, transaction))

    def _begin_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            transaction = heapq.heappop(self._upcoming)[1]
            self._ongoing_aborted.setdefault(transaction.producer_id, transaction)

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Takes a transactional batch into account. Returns whether its transaction is aborted."""
        self._begin_up_to(last_offset)
        if producer_id in self._ongoing_aborted:
            self._seen_aborted.add(producer_id)
            return True
        self._ongoing_committed.add(producer_id)
        return False

    def is_abort_needless(self, producer_id: int, marker_offset: int) -> bool:
        """Takes an abort marker into account. Returns whether the log has no batch of its transaction."""
        self._begin_up_to(marker_offset)
        transaction = self._ongoing_aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._seen_aborted:
            return True
        self._seen_aborted.discard(producer_id)
        self.kept_aborted.append(transaction)
        return False

    def is_commit_needless(self, producer_id: int, marker_offset: int) -> bool:
        """Takes a commit marker into account. Returns whether the log has no batch of its transaction."""
        self._begin_up_to(marker_offset)
        if producer_id not in self._ongoing_committed:
            return True
        self._ongoing_committed.discard(producer_id)
        return False
