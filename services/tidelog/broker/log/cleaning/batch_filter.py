"""Decides which batches and records compaction keeps: it takes chunks of whole batches and returns what
remains.

If a batch has tombstones, or is a marker that is no longer needed, its base timestamp becomes the time from
which they may be removed (KIP-534). In one respect this deliberately differs from Kafka: a batch that lost
records keeps its base timestamp, so the remaining records are copied unchanged. Kafka sets the timestamp of
the first remaining record. The timestamps of the records are the same. Source: Kafka's `Cleaner.cleanInto`,
`MemoryRecords.filterTo`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog.broker.log.cleaning.cleaning_job import CleaningJob
from tidelog.broker.log.cleaning.offset_map import (
    MAX_RAW_KEY_BYTES,
    OffsetMap,
    short_key,
)
from tidelog.broker.log.cleaning.segment_files import KeptBatch
from tidelog.records.aborted import AbortedBatches, AbortedTransaction
from tidelog.records.batch import (
    BATCH_HEADER_BYTES,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_COVERS_FROM,
    CRC_OFFSET,
    CURRENT_MAGIC,
    DELETE_HORIZON_BIT,
    HEADER,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    EndTransactionMarker,
)
from tidelog.records.compression import compress, decompress
from tidelog.records.record import CorruptRecordError, end_transaction_marker
from tidelog.records.record_walk import NULL_LENGTH, read_head
from tidelog.records.varint import append_varint

_SPECIAL: Final = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
# base offset, batch length, magic, attributes, last offset delta, max timestamp, producer id, record count
_DECIDING: Final = struct.Struct(">qi4xb4xhi8xqq6xi")
_CRC: Final = struct.Struct(">I")


class _KeptRecord(NamedTuple):
    """A record that is kept: `body[start:end]`. Its offset delta begins at `rest`."""

    start: int
    end: int
    timestamp_delta: int
    rest: int
    is_tombstone: bool


class TransactionProgress:
    """The transactions at one point of a log, whose batches are passed to this object in order. It finds the
    markers that are no longer needed, because the log has no batch of their transactions.

    `kept_aborted` has the aborted transactions of which the log still had batches. They belong in the index
    of the cleaned segment that receives their markers. Source: Kafka's `CleanedTransactionMetadata`.
    """

    def __init__(self, aborted: AbortedBatches) -> None:
        self._aborted = aborted
        self._seen_aborted: set[AbortedTransaction] = set()  # those with a batch in the log
        self._ongoing_committed: set[int] = set()
        self.kept_aborted: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Takes a transactional batch into account. Returns whether its transaction is aborted."""
        transaction = self._aborted.transaction_at(header.producer_id, header.base_offset)
        if transaction is None:
            self._ongoing_committed.add(header.producer_id)
            return False
        self._seen_aborted.add(transaction)
        return True

    def is_marker_needless(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Takes a control batch into account. `marker` is None if it is of another type."""
        if marker is None:
            return False
        if marker.is_commit:
            was_ongoing = header.producer_id in self._ongoing_committed
            self._ongoing_committed.discard(header.producer_id)
            return not was_ongoing
        transaction = self._aborted.transaction_at(header.producer_id, header.base_offset)
        if transaction is None or transaction not in self._seen_aborted:
            return True
        self._seen_aborted.discard(transaction)
        self.kept_aborted.append(transaction)
        return False


class BatchFilter:
    """The filter of one job; it follows the transactions from segment to segment."""

    def __init__(self, job: CleaningJob, offset_map: OffsetMap, progress: TransactionProgress) -> None:
        self._map = offset_map
        self._progress = progress
        self._now_ms = job.now_ms
        self._horizon_ms = job.now_ms + job.delete_retention_ms
        self._end_offset = job.first_uncleanable_offset
        self._last_records = {record.producer_id: record for record in job.last_records}
        self.output: list[bytes | memoryview] = []
        self.kept: list[KeptBatch] = []
        self.records_read = self.records_kept = 0

    def take(self, chunk: bytes) -> int:
        """Filters the batches of a chunk into `output` and `kept`. Returns the size of its whole batches.

        A batch with one plain record below the end of the map is decided here, without its key, because such
        batches dominate the cost of cleaning small batches. Raises ValueError for damaged data.
        """
        self.output.clear()
        self.kept.clear()
        output, kept, view = self.output, self.kept, memoryview(chunk)
        newest, first, last_of = self._map.newest, self._map.first_offset, self._last_records
        limit = min(self._map.latest_offset, self._end_offset - 2) if newest is not None else -1
        at, last_start, end = 0, len(chunk) - BATCH_HEADER_BYTES, len(chunk)
        unkept = 0  # start of the unchanged batches that are not in the output yet
        read = kept_records = 0
        unpack = _DECIDING.unpack_from
        while at <= last_start:
            base_offset, length, magic, attributes, delta, max_timestamp, producer_id, count = unpack(
                chunk, at
            )
            stop = at + length + LOG_OVERHEAD_BYTES
            if stop > end or magic != CURRENT_MAGIC or length < 49:
                break
            read += count
            if (
                count == 1
                and not delta
                and first <= base_offset <= limit
                and not attributes & _SPECIAL
                and (producer_id < 0 or producer_id not in last_of)
            ):
                if not newest[base_offset - first]:  # type: ignore[index]
                    if unkept < at:
                        output.append(view[unkept:at])
                    at = unkept = stop
                    continue
                _, _, _, _, place, size = read_head(chunk, at + BATCH_HEADER_BYTES)
                if chunk[place + size if size > 0 else place] != NULL_LENGTH:  # not a tombstone
                    kept.append((stop - at, base_offset, max_timestamp))
                    kept_records += 1
                    at = stop
                    continue
            changed = self._filter(chunk, at, stop, BatchHeader._make(HEADER.unpack_from(chunk, at)))
            if changed is not None:
                if unkept < at:
                    output.append(view[unkept:at])
                if changed:
                    output.append(changed)
                unkept = stop
            at = stop
        if unkept < at:
            output.append(view[unkept:at])
        self.records_read += read
        self.records_kept += kept_records
        return at

    def _filter(self, chunk: bytes, at: int, stop: int, header: BatchHeader) -> bytes | None:
        """Returns None if the batch stays as it is, else the new batch, or no bytes if nothing remains."""
        is_control = header.is_control
        if is_control:
            # An earlier cleaning has emptied a control batch without a record.
            is_needless = not header.record_count or self._progress.is_marker_needless(
                header, end_transaction_marker(chunk, at)
            )
            has_horizon = header.attributes & DELETE_HORIZON_BIT
            drops_records = bool(is_needless and has_horizon and header.base_timestamp <= self._now_ms)
        else:
            is_needless = header.is_transactional and self._progress.is_aborted(header)
            drops_records = is_needless
        stays_empty = header.last_offset + 1 == self._end_offset or self._is_last_of_producer(header)
        kept: list[_KeptRecord] = []
        body, place = chunk, at + BATCH_HEADER_BYTES
        if not drops_records and header.record_count and not self._is_wholly_superseded(header):
            limit = stop
            if codec := header.attributes & COMPRESSION_MASK:
                body, place = bytes(decompress(codec, chunk[place:stop])), 0
                limit = len(body)
            kept = self._kept_records(body, place, limit, header)
        if not kept:
            if not stays_empty:
                return b""
            self.kept.append((BATCH_HEADER_BYTES, header.last_offset, header.max_timestamp))
            return _empty_batch(header)
        self.records_kept += len(kept)
        needs_horizon = not header.attributes & DELETE_HORIZON_BIT and (
            (is_control and is_needless) or any(record.is_tombstone for record in kept)
        )
        if len(kept) == header.record_count and not needs_horizon:
            self.kept.append((stop - at, header.last_offset, header.max_timestamp))
            return None
        return self._rebuilt(body, header, kept, self._horizon_ms if needs_horizon else None)

    def _is_wholly_superseded(self, header: BatchHeader) -> bool:
        """Returns whether the marks alone show that no record of the batch is the newest of its key."""
        newest, first = self._map.newest, self._map.first_offset
        if newest is None or header.base_offset < first or header.last_offset > self._map.latest_offset:
            return False
        if header.is_control:
            return False
        return newest.find(1, header.base_offset - first, header.last_offset - first + 1) < 0

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Returns whether the batch must stay, possibly empty, because it has the producer's sequence or
        epoch.
        """
        last = self._last_records.get(header.producer_id)
        if last is None or header.producer_id < 0:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _kept_records(self, body: bytes, place: int, limit: int, header: BatchHeader) -> list[_KeptRecord]:
        try:
            kept, place = self._chosen_records(body, place, header)
        except (IndexError, ValueError) as error:
            raise CorruptRecordError(f"batch at offset {header.base_offset}: {error}") from error
        if place != limit:
            raise CorruptRecordError(f"batch at offset {header.base_offset}: {limit - place} bytes are left")
        return kept

    def _chosen_records(self, body: bytes, place: int, header: BatchHeader) -> tuple[list[_KeptRecord], int]:
        """Returns the records that are kept, and the position after the last record of the batch."""
        kept = []
        newest, first, latest = self._map.newest, self._map.first_offset, self._map.latest_offset
        base_offset, is_control, find = header.base_offset, header.is_control, self._map.entries.get
        marked = b""
        if newest is not None and base_offset >= first and header.last_offset <= latest:
            marked = newest[base_offset - first : header.last_offset - first + 1]
        keeps_tombstones = not (
            header.attributes & DELETE_HORIZON_BIT and header.base_timestamp <= self._now_ms
        )
        for _ in range(header.record_count):
            start = place
            place, timestamp_delta, rest, delta, key_place, size = read_head(body, start)
            is_tombstone = not is_control and body[key_place + size if size > 0 else key_place] == NULL_LENGTH
            if is_control or base_offset + delta > latest:
                is_kept = True
            elif size < 0 or (is_tombstone and not keeps_tombstones):
                is_kept = False
            elif marked:
                is_kept = bool(marked[delta])
            else:
                key = body[key_place : key_place + size]
                newest_offset = find(key if size <= MAX_RAW_KEY_BYTES else short_key(key), -1)
                is_kept = newest_offset <= base_offset + delta
            if is_kept:
                kept.append(_KeptRecord(start, place, timestamp_delta, rest, is_tombstone))
        return kept, place

    def _rebuilt(
        self, body: bytes, header: BatchHeader, kept: list[_KeptRecord], horizon_ms: int | None
    ) -> bytes:
        """Returns the batch with the kept records. Its offsets and its last sequence do not change."""
        attributes, base_timestamp = header.attributes, header.base_timestamp
        if horizon_ms is None:
            records = b"".join([body[record.start : record.end] for record in kept])
        else:
            attributes |= DELETE_HORIZON_BIT
            records = _with_base_timestamp(body, kept, base_timestamp, horizon_ms)
            base_timestamp = horizon_ms
        max_timestamp = header.max_timestamp
        if not attributes & TIMESTAMP_TYPE_BIT:
            max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in kept)
        data = compress(attributes & COMPRESSION_MASK, records) if attributes & COMPRESSION_MASK else records
        batch = _packed(
            header._replace(
                batch_length=BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES + len(data),
                attributes=attributes,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                record_count=len(kept),
            ),
            bytes(data),
        )
        self.kept.append((len(batch), header.last_offset, max_timestamp))
        return batch


def _with_base_timestamp(body: bytes, kept: list[_KeptRecord], old_ms: int, new_ms: int) -> bytes:
    """Encodes the records again, with timestamps relative to `new_ms`."""
    output = bytearray()
    for record in kept:
        timestamp = bytearray()
        append_varint(timestamp, old_ms + record.timestamp_delta - new_ms)
        append_varint(output, 1 + len(timestamp) + record.end - record.rest)
        output.append(0)  # attributes
        output += timestamp
        output += body[record.rest : record.end]
    return bytes(output)


def _empty_batch(header: BatchHeader) -> bytes:
    """Returns a batch without records that keeps the offsets and the sequence."""
    attributes = header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _packed(
        header._replace(
            batch_length=BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES,
            attributes=attributes,
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def _packed(header: BatchHeader, records: bytes) -> bytes:
    batch = bytearray(HEADER.pack(*header))
    batch += records
    _CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
    return bytes(batch)
