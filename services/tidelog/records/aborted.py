"""Decides which batches a reader of committed records does not see.

There are two forms of the one rule. A reader of a log knows where each aborted transaction begins and ends:
`AbortedBatches`. A reader of a Fetch response knows only where it begins, because the response contains its
marker: `visible_batches`. mypyc compiles this module (ADR 0020).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, crc_matches, iterate_headers
from tidelog.records.record import end_transaction_marker


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a log. `last_offset` is the offset of its marker.

    Every transaction that began below `last_stable_offset` had ended when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_BY_MARKER = attrgetter("last_offset")


class AbortedBatches:
    """The batches of aborted transactions. Markers do not belong to them, because they are not records."""

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        # The transactions of one producer follow each other, so those that begin first end first.
        for transaction in sorted(aborted, key=_BY_MARKER):
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def __contains__(self, header: BatchHeader) -> bool:
        return (
            header.is_transactional
            and not header.is_control
            and self.transaction_at(header.producer_id, header.base_offset) is not None
        )

    def transaction_at(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """Returns the aborted transaction to which a batch or marker of the producer at this offset
        belongs.
        """
        of_producer = self._by_producer.get(producer_id)
        if of_producer is None:
            return None
        at = bisect_left(of_producer, offset, key=_BY_MARKER)
        if at == len(of_producer) or of_producer[at].first_offset > offset:
            return None
        return of_producer[at]


def visible_batches(
    raw: memoryview, aborted: Iterable[tuple[int, int]], *, checks_crc: bool = True
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Yields the position and header of each batch of a Fetch response, and whether a reader sees its
    records. An incomplete batch at the end is ignored.

    `aborted` has the first offset and the producer id of each aborted transaction. It is empty for readers
    that see everything. Raises ValueError for damaged bytes.
    """
    upcoming = sorted(aborted, reverse=True)
    aborted_producers: set[int] = set()
    for start, header in iterate_headers(raw):
        if checks_crc and not crc_matches(header, raw, start):
            raise ValueError(f"the batch at offset {header.base_offset} has a wrong CRC")
        while upcoming and upcoming[-1][0] <= header.last_offset:
            aborted_producers.add(upcoming.pop()[1])
        if header.is_control:
            if end_transaction_marker(raw, start) is not None:
                aborted_producers.discard(header.producer_id)
            yield start, header, False
        else:
            yield start, header, not (header.is_transactional and header.producer_id in aborted_producers)
