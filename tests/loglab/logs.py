"""Opening a log the short way, and stopping one the hard way."""

from __future__ import annotations

from pathlib import Path

from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.open_segments import OpenSegments
from tidelog.broker.log.partition_directory import LEADER_EPOCHS_FILE
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.partition.leader_epochs import LeaderEpochs
from tidelog.broker.partition.producer_state import ProducerState


def open_log(
    directory: Path,
    config: LogConfig | None = None,
    *,
    now_ms: int = 0,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean: bool = False,
    open_segments: OpenSegments | None = None,
) -> PartitionLog:
    epochs = directory / LEADER_EPOCHS_FILE
    return PartitionLog.open(
        directory,
        config or LogConfig(),
        now_ms=now_ms,
        producer_state=ProducerState(),
        leader_epochs=LeaderEpochs.decode(epochs.read_bytes()) if epochs.exists() else LeaderEpochs(),
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean,
        open_segments=open_segments,
    )


def kill(log: PartitionLog) -> None:
    """The process is gone: what it had written stays, what it had in memory does not."""
    log.close_files()


def files(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(suffix))
