"""Opens logs with few arguments, fills them with batches as a leader appends them, and stops them like a
process that dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.partition_log import OpenedLog, PartitionLog
from tidelog.broker.log.segment import OpenSegments
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.partition.events import LogRestarted, Truncated
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.records.batch import BatchHeader, EndTransactionMarker, iterate_headers, parse_header
from tidelog.records.builder import build_batch, build_end_transaction_batch
from tidelog.records.record import Record, end_transaction_marker

_OWN = {"storage", "log", "producer_state", "leader_epochs"}


class OwnedLog:
    """A partition's log with the state that its core keeps.

    Like `Replica` and `PartitionCore`, it passes the state to be persisted to the log and applies the results
    of the log. It passes all other calls to the `PartitionLog` and to the `SegmentedLog` in that.
    """

    storage: PartitionLog
    log: SegmentedLog

    def __init__(self, opened: OpenedLog) -> None:
        self.storage, self.producer_state, self.leader_epochs = opened
        self.log = self.storage.log

    # Any: the attribute can be any of PartitionLog or SegmentedLog.
    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self.storage if hasattr(PartitionLog, name) else self.log, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.storage if hasattr(PartitionLog, name) else self.log, name, value)

    def append(self, batch: memoryview | bytes, header: BatchHeader, now_ms: int) -> None:
        if not self.log.append(batch, header, now_ms):
            self.storage.roll(header.base_offset, now_ms, self.producer_state.snapshot())
            assert self.log.append(batch, header, now_ms)

    def append_received(self, records: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> int:
        count = self.log.append_received(records, headers, now_ms)
        if not count:
            self.storage.roll(headers[0].base_offset, now_ms, self.producer_state.snapshot())
            count = self.log.append_received(records, headers, now_ms)
        return count

    def roll(self, now_ms: int) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        if self.log.segments[-1].size_bytes:
            self.storage.roll(self.log.log_end_offset, now_ms, self.producer_state.snapshot())

    def delete_old_segments(self, now_ms: int, high_watermark: int) -> int:
        count = self.storage.delete_old_segments(now_ms, high_watermark, self.producer_state.snapshot)
        self._log_start_moved()
        return count

    def increment_log_start_offset(self, offset: int) -> bool:
        moved = self.storage.increment_log_start_offset(offset)
        self._log_start_moved()
        return moved

    def _log_start_moved(self) -> None:
        if self.leader_epochs.truncate_from_start(self.log.log_start_offset):
            self.persist_leader_epochs()

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        end_offset = self.log.log_end_offset
        self._apply(self.storage.truncate_to(offset, self.leader_epochs.copy(), now_ms))
        return offset < end_offset

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        self._apply(self.storage.restart_at(offset, now_ms))

    def _apply(self, event: Truncated | LogRestarted) -> None:
        if isinstance(event, LogRestarted):
            self.leader_epochs.clear()
            self.producer_state = ProducerState()
            return
        self.leader_epochs.truncate_from_end(event.log_end_offset)
        self.leader_epochs.truncate_from_start(event.log_start_offset)
        if event.producers is not None:
            self.producer_state = event.producers

    def persist_leader_epochs(self, *, syncs: bool = False) -> None:
        self.storage.leader_epoch_checkpoint = self.leader_epochs.encode()
        self.storage.persist_leader_epochs(syncs=syncs)

    def write_producer_snapshot(self) -> None:
        self.storage.write_producer_snapshot(self.producer_state.snapshot())

    def close(self) -> None:
        self.storage.close(self.producer_state.snapshot())


def open_log(
    directory: Path,
    config: LogConfig | None = None,
    *,
    now_ms: int = 0,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    high_watermark: int = 0,
    clean: bool = False,
    is_suspect: bool = False,
    is_only_replica: bool = False,
    open_segments: OpenSegments | None = None,
) -> OwnedLog:
    return OwnedLog(
        PartitionLog.open(
            directory,
            config or LogConfig(),
            now_ms=now_ms,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            clean_shutdown=clean,
            is_suspect=is_suspect,
            is_only_replica=is_only_replica,
            open_segments=open_segments,
        )
    )


def kill(log: OwnedLog) -> None:
    """Closes a log as the death of the process does: data in files remains, data in memory is lost."""
    log.close_files()


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(suffix))


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
