"""Builds batches as a leader has them when it appends: with offset, epoch and CRC."""

from __future__ import annotations

from brokerlab.logs import OwnedLog
from tidelog.records.batch import BatchHeader, EndTransactionMarker, iterate_headers, parse_header
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.record import Record, end_transaction_marker


def make_batch(
    base_offset: int,
    count: int = 1,
    *,
    value_bytes: int = 10,
    timestamp: int = 1000,
    timestamps: list[int] | None = None,
    leader_epoch: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """Returns a batch of `count` records. All have `timestamp`, unless `timestamps` has one for each."""
    times = [timestamp] * count if timestamps is None else timestamps
    records = [
        Record(base_offset + number, time, b"k%06d" % (base_offset + number), bytes(value_bytes))
        for number, time in enumerate(times)
    ]
    return bytes(
        build_batch(
            records,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    )


def make_marker(
    offset: int,
    *,
    is_commit: bool,
    producer_id: int,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    timestamp: int = 1000,
    leader_epoch: int = 0,
) -> bytes:
    """Returns the marker that ends a producer's transaction."""
    return bytes(
        build_end_transaction_batch(
            EndTransactionMarker(is_commit, coordinator_epoch),
            base_offset=offset,
            timestamp_ms=timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            leader_epoch=leader_epoch,
        )
    )


def append(log: OwnedLog, batch: bytes, now_ms: int = 0) -> BatchHeader:
    """Appends a batch, updates the producer state, and notes an aborted transaction, as `Replica` does."""
    header = parse_header(batch)
    log.append(memoryview(batch), header, now_ms)
    if header.producer_id >= 0:
        marker = end_transaction_marker(batch) if header.is_control else None
        completed = log.producer_state.update(header, header.max_timestamp, marker)
        if completed is not None and completed.is_aborted:
            log.index_aborted(completed)
    return header


def append_batches(log: OwnedLog, count: int, *, now_ms: int = 0, **shape: int) -> list[bytes]:
    """Appends `count` batches of one record each at the log end. `shape` is passed to `make_batch`."""
    batches = []
    for _ in range(count):
        batch = make_batch(log.log_end_offset, **shape)  # type: ignore[arg-type]
        append(log, batch, now_ms)
        batches.append(batch)
    return batches


def read_all(log: OwnedLog, *, max_bytes: int = 1 << 20, start: int | None = None) -> list[bytes]:
    """Returns all batches from `start` (default: the log start) to the end, read fetch by fetch as by a
    consumer.
    """
    offset = log.log_start_offset if start is None else start
    batches: list[bytes] = []
    while offset < log.log_end_offset:
        stretch = log.read(offset, max_bytes, log.log_end_offset)
        if stretch is None:  # there are no records up to the end
            break
        data = stretch.read()
        stretch.release()
        found = list(iterate_headers(data))
        assert sum(header.size_bytes for _, header in found) == len(data), "a batch is cut off"
        batches += [data[at : at + header.size_bytes] for at, header in found]
        offset = found[-1][1].last_offset + 1
    return batches
