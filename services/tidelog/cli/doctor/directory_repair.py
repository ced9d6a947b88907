"""Repairs a data directory after a check, and first copies every file that it changes or removes.

A log is cut at its first batch that is not sound, as recovery does after a crash, because a log with a hole
would differ from its other replicas. The replica is then marked like one that has lost its end, so that it
does not become the leader while others can. So is one whose log ends below its checkpoints. Everything else
is derived from the batches again.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tidelog.broker.log.directory_files import (
    LogStorageError,
    PartitionDirectory,
    read_meta_properties,
    sync_directory,
    write_atomically,
    write_meta_properties,
    write_offsets,
)
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.partition_log import PartitionLog
from tidelog.broker.log.previous_life import life_of, with_life
from tidelog.cli.doctor.directory_check import CHECKPOINTS, DirectoryReport
from tidelog.cli.doctor.partition_check import PartitionReport
from tidelog.cli.output import counted
from tidelog.kernel.instants import WallMs
from tidelog.log_format.directory import (
    INDEX_SUFFIXES,
    LEADER_EPOCHS_FILE,
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SEGMENTS_CHECKPOINT_FILE,
    SNAPSHOT_SUFFIX,
    CorruptFileError,
    encode_base_offsets,
    is_orphan,
    parse_partition_directory_name,
)
from tidelog.model.topics import TopicPartition

_EPOCH_IN_BATCH: Final = 12
"""The place of the leader epoch in a batch: after base offset and length. The CRC does not cover it."""
_EPOCH: Final = struct.Struct(">i")

Tell = Callable[[str], None]


class RepairError(Exception):
    """A directory that cannot be repaired. The message is one sentence with the reason."""


class Copies:
    """The directory with the copies. It keeps the paths of the files relative to the data directory."""

    def __init__(self, source: Path, target: Path) -> None:
        """Creates the directory `target`, which must not exist. Raises RepairError."""
        self.path = target
        self._source = source
        self._copied: set[Path] = set()
        try:
            target.mkdir(mode=0o700)
            sync_directory(target.parent)
        except OSError as error:
            raise RepairError(
                f"the directory for copies {target} cannot be created: {error.strerror}"
            ) from error

    def __len__(self) -> int:
        return len(self._copied)

    def keep(self, files: Iterable[Path]) -> None:
        """Copies the files that exist and are not copied yet, durably. Raises OSError."""
        for file in files:
            if file in self._copied or not file.exists():
                continue
            target = self.path / file.relative_to(self._source)
            target.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(self.path)
            shutil.copy2(file, target)
            with target.open("rb") as copy:
                os.fsync(copy.fileno())
            sync_directory(target.parent)
            self._copied.add(file)


def repair_directory(report: DirectoryReport, copies: Copies, now_ms: WallMs, tell: Tell) -> None:
    """Repairs everything that the report names. `tell` gets a line for each change.

    Raises RepairError, OSError. Then the files that were changed so far have copies, too.
    """
    faulty = [partition for partition in report.partitions if partition.needs_repair]
    for partition in faulty:
        _require_no_swap(partition)
    lost = {
        key
        for partition in report.partitions
        if (partition.cut is not None or partition.has_bad_list or partition.has_lost_end)
        and (key := parse_partition_directory_name(partition.path.name)) is not None
    }
    lost |= report.emptied
    # Replicas are marked before anything is cut. If the repair fails later, the next one finds sound logs.
    # The broker itself would compare the logs with checkpoints that the repair lowers.
    if lost:
        _mark_as_lost(report.path, lost, copies, tell)
    for partition in faulty:
        _repair_partition(partition, copies, now_ms, tell)
    _repair_checkpoints(report, copies, tell)


def _require_no_swap(report: PartitionReport) -> None:
    if report.is_swapping:
        raise RepairError(
            f"{report.path}: a compaction was interrupted; start the broker once, which completes it, and "
            "stop it again"
        )


def _repair_partition(report: PartitionReport, copies: Copies, now_ms: WallMs, tell: Tell) -> None:
    directory = PartitionDirectory(str(report.path))
    bases = directory.offsets_of(LOG_SUFFIX)
    names = {path.name: path for path in report.path.iterdir() if path.is_file()}
    # Opening the log removes leftovers, indexes without a segment and needless snapshots.
    copies.keep(path for name, path in names.items() if name.endswith((*LEFTOVER_SUFFIXES, SNAPSHOT_SUFFIX)))
    copies.keep(path for name, path in names.items() if is_orphan(name, names))
    copies.keep([report.path / LEADER_EPOCHS_FILE, report.path / SEGMENTS_CHECKPOINT_FILE])
    if report.cut is not None:
        _cut(report, directory, bases, copies, tell)
    for place, epoch in report.wrong_epochs:
        path = Path(directory.file(place.base_offset, LOG_SUFFIX))
        if report.cut is not None and place >= report.cut:
            continue
        copies.keep([path])
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), _EPOCH.pack(epoch), place.position + _EPOCH_IN_BATCH)
            os.fsync(file.fileno())
        tell(f"{path}: the batch at position {place.position} has leader epoch {epoch} again")
    for base_offset in sorted(report.bad_indexes):
        if Path(directory.file(base_offset, LOG_SUFFIX)).exists():
            _remove(directory, base_offset, INDEX_SUFFIXES, copies)
            tell(f"{directory.file(base_offset, LOG_SUFFIX)}: its indexes are built again")
    for offset in report.bad_snapshots:
        Path(directory.file(offset, SNAPSHOT_SUFFIX)).unlink(missing_ok=True)
        tell(f"{directory.file(offset, SNAPSHOT_SUFFIX)}: the snapshot is removed")
    if report.has_bad_epochs:
        (report.path / LEADER_EPOCHS_FILE).unlink(missing_ok=True)
        tell(f"{report.path / LEADER_EPOCHS_FILE}: the epochs are taken from the batches")
    if report.has_bad_list or report.cut is not None:
        remaining = directory.offsets_of(LOG_SUFFIX)
        content = encode_base_offsets(remaining)
        write_atomically(report.path / SEGMENTS_CHECKPOINT_FILE, content)
        tell(f"{report.path / SEGMENTS_CHECKPOINT_FILE}: it lists the {len(remaining)} segments that exist")
    _open_once(report, now_ms)


def _cut(
    report: PartitionReport, directory: PartitionDirectory, bases: Iterable[int], copies: Copies, tell: Tell
) -> None:
    """Cuts the log at the first batch that is not sound, and removes what follows."""
    assert report.cut is not None
    base_offset, position = report.cut
    path = Path(directory.file(base_offset, LOG_SUFFIX))
    later = [base for base in bases if base > base_offset]
    for base in (base_offset, *later):
        copies.keep(Path(directory.file(base, suffix)) for suffix in SEGMENT_SUFFIXES)
    size = path.stat().st_size
    os.truncate(path, position)
    _remove(directory, base_offset, INDEX_SUFFIXES, copies)
    for base in later:
        _remove(directory, base, SEGMENT_SUFFIXES, copies)
    for offset in directory.offsets_of(SNAPSHOT_SUFFIX):
        if offset > report.log_end_offset:
            Path(directory.file(offset, SNAPSHOT_SUFFIX)).unlink()
    directory.sync()
    text = f"{path}: cut at position {position}, {size - position} bytes are removed"
    tell(f"{text}, and {len(later)} later segments" if later else text)


def _remove(directory: PartitionDirectory, base_offset: int, suffixes: Iterable[str], copies: Copies) -> None:
    for suffix in suffixes:
        path = Path(directory.file(base_offset, suffix))
        copies.keep([path])
        path.unlink(missing_ok=True)


def _open_once(report: PartitionReport, now_ms: WallMs) -> None:
    """Opens and closes the log as a broker does, which builds the missing indexes, snapshots and epochs."""
    try:
        opened = PartitionLog.open(
            report.path, LogConfig(), now_ms=now_ms, recovery_point=report.log_end_offset, clean_shutdown=True
        )
        opened.storage.close(opened.producers.snapshot())
    except LogStorageError as error:
        raise RepairError(f"{report.path} cannot be opened after its repair: {error}") from error
    report.log_end_offset = opened.storage.log.log_end_offset


def _repair_checkpoints(report: DirectoryReport, copies: Copies, tell: Tell) -> None:
    """Writes the checkpoints again, with offsets that lie within the logs.

    A checkpoint that could not be read keeps no offsets, as when a broker reads it, except the recovery
    points: after a clean stop, they are the ends of the logs.
    """
    known = {parse_partition_directory_name(p.path.name): p for p in report.partitions}
    for name in CHECKPOINTS:
        before = report.checkpoints[name]
        after = {
            key: min(max(0, offset), known[key].log_end_offset)
            for key, offset in before.items()
            if key in known
        }
        if name == RECOVERY_POINT_CHECKPOINT and name in report.bad_checkpoints and report.is_clean:
            after = {key: p.log_end_offset for key, p in known.items() if key is not None}
        if name not in report.bad_checkpoints and after == before:
            continue
        copies.keep([report.path / name])
        write_offsets(report.path / name, after)
        tell(f"{report.path / name}: written again with {counted(len(after), 'partition')}")


def _mark_as_lost(directory: Path, cut: Iterable[TopicPartition], copies: Copies, tell: Tell) -> None:
    """Marks replicas that have lost records, so that they are not elected while others can lead."""
    try:
        meta = read_meta_properties(directory)
    except CorruptFileError as error:
        raise RepairError(f"{error}; restore it first, because a log that is cut is marked there") from error
    if meta is None:
        return
    life = life_of(meta)
    lost = tuple(sorted({*life.lost_tails, *cut}))
    copies.keep([directory / META_PROPERTIES_FILE])
    write_meta_properties(directory, with_life(meta, life._replace(lost_tails=lost)))
    names = ", ".join(map(str, lost))
    tell(f"{directory / META_PROPERTIES_FILE}: the controller will learn that {names} lost records")
