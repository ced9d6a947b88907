"""The visible batches of a fetch: not those of aborted transactions, and not the markers of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.records.batch import BatchHeader, crc_matches, iterate_headers
from tidelog.records.record import end_transaction_marker


def iterate_visible(
    raw: memoryview, aborted: list[tuple[int, int]]
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Yields the position and header of each batch, and whether a reader sees its records.

    `aborted` has the first offset and the producer of each aborted transaction, the earliest last; it is
    used up. It is empty for readers that see everything. Raises ValueError for damaged bytes.
    """
    aborted_producers: set[int] = set()
    for start, header in iterate_headers(raw):
        if not crc_matches(header, raw, start):
            raise ValueError(f"the batch at offset {header.base_offset} has a wrong CRC")
        while aborted and aborted[-1][0] <= header.last_offset:
            aborted_producers.add(aborted.pop()[1])
        if header.is_control:
            if end_transaction_marker(raw, start) is not None:
                aborted_producers.discard(header.producer_id)
            yield start, header, False
        else:
            yield start, header, not (header.is_transactional and header.producer_id in aborted_producers)
