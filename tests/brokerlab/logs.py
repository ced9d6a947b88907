"""Opens logs with few arguments, and stops them like a process that dies."""

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
from tidelog.records.batch import BatchHeader

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
