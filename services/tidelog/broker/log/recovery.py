"""Opens and truncates a partition's log: makes segments, indexes, producer state and epochs agree again.

The producer state and the leader epochs that these functions fill are new objects. The partition core takes
them over when recovery is done. Records that recovery takes out of a log, because a batch before them is
damaged or missing, stay in files with the suffix `.stranded`. No program reads or removes them, and Apache
Kafka ignores them. They are for the operator, who may have no other copy. Source: Kafka's `LogLoader`,
`LogSegment.recover`, `ProducerStateManager`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from tidelog.broker.log.cleaning.swap_files import complete_interrupted_swaps
from tidelog.broker.log.directory_files import (
    PartitionDirectory,
    SegmentsCheckpoint,
    describe_missing,
    missing_names,
    sync_file,
)
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.segment import MAX_RELATIVE_OFFSET, OpenSegments, Segment, batch_with
from tidelog.broker.log.segment_indexes import aborted_transaction
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.kernel.instants import WallMs
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.log_format.directory import (
    LEADER_EPOCHS_FILE,
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    STRANDED_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    CorruptFileError,
    is_orphan,
)
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import NO_PRODUCER_ID, BatchHeader, EndTransactionMarker, known_max_timestamp
from tidelog.records.record import end_transaction_marker

_CHUNK_BYTES: Final = 1024 * 1024

_log = structlog.get_logger(__name__)


class LostRecordsError(ValueError):
    """A log ends below an offset that it has had. The message names both and the next step."""


class Cut(NamedTuple):
    """The place and the reason of a cut by recovery.

    `is_damage` is False if the log only lacked the end of a batch that was being written.
    """

    where: str
    is_damage: bool


class LoadedSegments(NamedTuple):
    """The segments of a log that was opened. `cut` is None if the log was sound.

    `unindexed` has the base offsets of segments with markers whose transaction index was lost. Only the
    producer state can restore that index.
    """

    segments: list[Segment]
    cut: Cut | None
    unindexed: frozenset[int]


class RecoveredSegment(NamedTuple):
    """The outcome of reading a whole segment. `cut` is None if it was sound."""

    cut: Cut | None
    has_markers: bool


def load_segments(
    directory: PartitionDirectory,
    config: LogConfig,
    leader_epochs: LeaderEpochs,
    checkpoint: SegmentsCheckpoint,
    *,
    recovery_point: int,
    log_start_offset: int,
    high_watermark: int,
    clean_shutdown: bool,
    is_suspect: bool,
    is_only_replica: bool,
    now_ms: WallMs,
) -> LoadedSegments:
    """Returns the segments in `directory`, at least one, and checks them as far as necessary.

    After a clean shutdown, it reads only the end of the active segment. Otherwise it reads each segment that
    reaches beyond `recovery_point` completely, checks its CRCs and rebuilds its indexes. It does the same
    for a segment whose indexes are missing or invalid. The log ends before the first batch that is not
    sound: everything behind it is taken out of the log, and kept (`.stranded`). If the log `is_suspect`, a
    crash of the machine may have lost what is above the recovery point. Raises OSError, and LostRecordsError
    if files are missing, or if a batch is damaged that was on disk when the broker stopped. Then no file was
    changed.
    """
    open_segments = OpenSegments()
    if any(name.endswith(SWAP_SUFFIX) for name in os.listdir(directory.path)):
        complete_interrupted_swaps(directory, checkpoint)
    _remove_leftovers(directory)
    bases, cut_at_hole = _without_hole(
        directory,
        checkpoint,
        open_segments,
        recovery_point if is_suspect else None,
        is_only_replica=is_only_replica,
    )
    safe_below = sys.maxsize if clean_shutdown else recovery_point
    segments: list[Segment] = []
    cut: Cut | None = None
    unindexed: set[int] = set()
    for number, base_offset in enumerate(bases):
        segment = _existing_segment(directory, base_offset, open_segments)
        is_last = number + 1 == len(bases)
        segment.next_offset = base_offset if is_last else bases[number + 1]
        if cut is not None:
            checkpoint.remove(bases[number:])
            strand_segment(segment)
            cut = cut._replace(is_damage=True)  # more followed, so it was not the end of the log
            continue
        segments.append(segment)
        needs_recovery = (
            not clean_shutdown and (is_last or segment.next_offset > recovery_point)
        ) or not _load_indexes(segment)
        if not needs_recovery and is_last:
            needs_recovery = not _load_end(segment)
        if needs_recovery:
            cut, has_markers = recover_segment(
                segment, config, leader_epochs, safe_below=safe_below, is_last=is_last
            )
            if has_markers:
                unindexed.add(base_offset)
        segment.close_files()
    log_end_offset = segments[-1].next_offset if segments else log_start_offset
    _require_end(log_end_offset, log_start_offset, high_watermark, clean_shutdown=clean_shutdown)
    if log_end_offset < log_start_offset:
        # The whole log is below its start: a crash lost its end after DeleteRecords.
        checkpoint.remove(bases)
        for segment in segments:
            segment.remove_files()
        segments = []
        unindexed.clear()
    if not segments:
        segments = [Segment(directory, log_start_offset, open_segments, created_ms=now_ms)]
        segments[0].create_files()
        segments[0].close_files()
    checkpoint.set_to(segment.base_offset for segment in segments)
    return LoadedSegments(segments, cut_at_hole or cut, frozenset(unindexed))


def _without_hole(
    directory: PartitionDirectory,
    checkpoint: SegmentsCheckpoint,
    open_segments: OpenSegments,
    unsafe_from: int | None,
    *,
    is_only_replica: bool,
) -> tuple[list[int], Cut | None]:
    """Returns the base offsets of the segments, up to the first one that a crash of the machine has lost.

    That crash can have lost segments at or above `unsafe_from`, None if there was none. The segments after
    such a hole are taken out of the log. The only replica may lack segments at its beginning: it starts at
    the first one that exists. Another replica must not, because it would have the others delete these records
    as soon as it led. Raises LostRecordsError if another segment is missing.
    """
    bases = directory.offsets_of(LOG_SUFFIX)
    missing = checkpoint.missing(bases)
    if missing and bases and is_only_replica and missing[0] < bases[0]:
        at_beginning = [base for base in missing if base < bases[0]]
        _log.error(
            "the log starts later, because its first segments are missing",
            directory=directory.path,
            log_start_offset=bases[0],
            missing=missing_names(at_beginning, bases),
        )
        checkpoint.remove(at_beginning)
        missing = missing[len(at_beginning) :]
    if not missing:
        return bases, None
    hole = missing[0]
    if unsafe_from is None or hole < unsafe_from:
        raise LostRecordsError(describe_missing(missing, bases, directory))
    stranded = [base for base in bases if base > hole]
    checkpoint.remove([*missing, *stranded])
    for base in stranded:
        strand_segment(_existing_segment(directory, base, open_segments))
    cut = Cut(f"{directory.file(hole, LOG_SUFFIX)}: the file is missing", is_damage=True)
    return [base for base in bases if base < hole], cut if stranded else None


def _require_end(
    log_end_offset: int, log_start_offset: int, high_watermark: int, *, clean_shutdown: bool
) -> None:
    """Raises LostRecordsError if a log ends too early: below its checkpointed high watermark after a clean
    shutdown, or below a log start that it cannot have had.

    A crash of the machine may lose the end of a log, but the log start never passes the high watermark.
    """
    if clean_shutdown and log_end_offset < high_watermark:
        raise LostRecordsError(
            f"the log ends at {log_end_offset}, but its high watermark was {high_watermark} when the broker "
            "stopped. Segments are missing. Restore them, or remove the partition's line from "
            "replication-offset-checkpoint to serve what is left"
        )
    if log_end_offset < log_start_offset and (clean_shutdown or log_start_offset > high_watermark):
        raise LostRecordsError(
            f"the log ends at {log_end_offset}, but log-start-offset-checkpoint states that it starts at "
            f"{log_start_offset}. Restore the missing segments, or remove the partition's line from that "
            "file to serve what is left"
        )


def _remove_leftovers(directory: PartitionDirectory) -> None:
    """Removes files that were being added or removed when the process died, and indexes without a segment."""
    names = set(os.listdir(directory.path))
    for name in names:
        if name.endswith(LEFTOVER_SUFFIXES) or is_orphan(name, names):
            directory.named(name).unlink(missing_ok=True)


def _existing_segment(
    directory: PartitionDirectory, base_offset: int, open_segments: OpenSegments
) -> Segment:
    status = os.stat(directory.file(base_offset, LOG_SUFFIX))
    return Segment(
        directory,
        base_offset,
        open_segments,
        size_bytes=status.st_size,
        created_ms=WallMs(status.st_mtime_ns // 1_000_000),
    )


def _load_indexes(segment: Segment) -> bool:
    """Takes the index files as they are. Returns False if they must be rebuilt."""
    for index, suffix in (
        (segment.offset_index, OFFSET_INDEX_SUFFIX),
        (segment.time_index, TIME_INDEX_SUFFIX),
    ):
        try:
            size = os.stat(segment.directory.file(segment.base_offset, suffix)).st_size
        except FileNotFoundError:
            return False
        if size % index.ENTRY.size:
            return False
        index.opened_with(size // index.ENTRY.size)
    if not (segment.offset_index.last_two_rise() and segment.time_index.last_two_rise()):
        return False
    if not segment.transaction_index.check():
        return False
    if segment.offset_index.entry_count:
        relative_offset, position = segment.offset_index.entry(segment.offset_index.entry_count - 1)
        if relative_offset <= 0 or not 0 <= position < segment.size_bytes:
            return False
    timestamp, offset = segment.time_index.last()
    if segment.size_bytes and (timestamp <= 0 or offset < segment.base_offset):
        # A finished segment ends its time index, unless its batches have no timestamps. Older brokers also
        # noted times of 0 from headers that state no right time.
        return False
    segment.time_index.load_last()
    segment.max_timestamp, segment.offset_of_max_timestamp = timestamp, offset
    return True


def _load_end(segment: Segment) -> bool:
    """Reads the active segment from its last index entry, to learn next offset and greatest timestamp.

    Returns False if a batch there is not sound.
    """
    if not segment.size_bytes:
        segment.next_offset = segment.base_offset
        return True
    fd = segment.open_file()
    try:
        for _, header, _ in scan_headers(
            partial(os.pread, fd), segment.offset_index.last_position(), segment.size_bytes
        ):
            segment.next_offset = header.last_offset + 1
            segment.note_times(header)
        _, first, _ = next(scan_headers(partial(os.pread, fd), 0, segment.size_bytes))
    except TornLogError:
        return False
    segment.first_timestamp = known_max_timestamp(first)
    return True


def recover_segment(
    segment: Segment, config: LogConfig, leader_epochs: LeaderEpochs, *, safe_below: int, is_last: bool
) -> RecoveredSegment:
    """Reads the whole segment, cuts it at the first batch that is not sound, and rebuilds its indexes.

    The index of aborted transactions stays empty. Adds the epochs of the batches to `leader_epochs`. Raises
    LostRecordsError, before it cuts, if the batch was on disk when the broker stopped: it is below
    `safe_below`.
    """
    fd = segment.open_file()
    segment.offset_index.reset()
    segment.time_index.reset()
    segment.transaction_index.reset()
    segment.max_timestamp, segment.offset_of_max_timestamp = -1, segment.base_offset
    segment.has_unknown_times = False
    segment.next_offset = segment.base_offset
    segment.bytes_since_index_entry = 0
    end, cut, has_markers = 0, None, False
    try:
        for position, header, _ in scan_headers(
            partial(os.pread, fd), 0, segment.size_bytes, min_offset=segment.base_offset, checks_crc=True
        ):
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                raise TornLogError(
                    position, f"offset {header.last_offset} is too far from the segment's first"
                )
            _take_in(segment, header, position, config)
            leader_epochs.note_batch(header.partition_leader_epoch, header.base_offset)
            has_markers |= header.is_control
            end = position + header.size_bytes
    except TornLogError as error:
        is_damage = not (error.is_cut_off and is_last)
        if is_damage and segment.next_offset < safe_below:
            raise LostRecordsError(
                f"{segment.path}: {error}. The batch from offset {segment.next_offset} was on disk when the "
                "broker stopped, so recovery does not cut the log there. Restore the file, or have 'tidelog "
                f"doctor {os.path.dirname(segment.directory.path)} --repair' cut the log, which keeps copies"
            ) from error
        cut = Cut(f"{segment.path}: {error}", is_damage=is_damage)
        if is_damage:
            strand_end(segment, end)
        os.ftruncate(fd, end)
        segment.size_bytes = end
    segment.finish()
    return RecoveredSegment(cut, has_markers)


def _take_in(segment: Segment, header: BatchHeader, position: int, config: LogConfig) -> None:
    """Updates indexes and offsets for a batch, as an append does."""
    if not position:
        segment.first_timestamp = known_max_timestamp(header)
    segment.note_times(header)
    if segment.bytes_since_index_entry > config.index_interval_bytes:
        segment.add_index_entries(header.last_offset, position)
        segment.bytes_since_index_entry = 0
    segment.bytes_since_index_entry += header.size_bytes
    segment.next_offset = header.last_offset + 1


def truncate_segment(segment: Segment, offset: int) -> None:
    """Removes the batches with a record at or above `offset`. Raises OSError, TornLogError."""
    place = batch_with(segment, offset)
    if place is not None:
        os.ftruncate(segment.open_file(), place.position)
        segment.size_bytes = place.position
    segment.offset_index.keep_below(offset - segment.base_offset)
    segment.time_index.keep_offsets_below(offset)
    segment.transaction_index.keep_below(offset)
    segment.bytes_since_index_entry = 0
    segment.next_offset = segment.base_offset
    segment.max_timestamp, segment.offset_of_max_timestamp = segment.time_index.last()
    if not _load_end(segment):
        raise TornLogError(0, f"{segment.path} has unsound batches after truncation")


def rebuild_producers(
    directory: PartitionDirectory,
    segments: Sequence[Segment],
    log_end_offset: int,
    now_ms: WallMs,
    unindexed: Collection[int] = (),
) -> ProducerState:
    """Returns the producer state at the log end.

    It is read from the newest valid snapshot at or below the log end, and from the batches after it. If
    there are `unindexed` segments, it begins before them and restores their transaction indexes. Raises
    OSError, TornLogError.
    """
    remove_snapshots(directory, above=log_end_offset)
    start = segments[0].base_offset
    producers = ProducerState()
    _remove_stray_snapshots(directory, segments)
    newest = min(unindexed, default=log_end_offset)
    for offset in reversed(directory.offsets_of(SNAPSHOT_SUFFIX)):
        if offset > newest:
            continue
        path = directory.file(offset, SNAPSHOT_SUFFIX)
        try:
            producers.load(Path(path).read_bytes(), offset, now_ms)
        except CorruptFileError:
            os.unlink(path)
            continue
        start = offset
        break
    for segment in segments:
        if segment.next_offset > start and segment.size_bytes:
            aborted = _replay(segment, producers, start, now_ms)
            if segment.base_offset in unindexed:
                for transaction in aborted:
                    segment.transaction_index.append(transaction)
                segment.transaction_index.spill()
    return producers


def _replay(
    segment: Segment, producers: ProducerState, start_offset: int, now_ms: WallMs
) -> list[AbortedTransaction]:
    """Takes the batches from `start_offset` into the state. Returns the transactions they abort."""
    aborted: list[AbortedTransaction] = []
    place = batch_with(segment, start_offset)
    if place is None:
        return aborted
    fd = segment.open_file()
    for position, header, _ in scan_headers(partial(os.pread, fd), place.position, segment.size_bytes):
        if header.producer_id != NO_PRODUCER_ID:
            marker = _marker(fd, position, header) if header.is_control else None
            completed = producers.update(header, now_ms, marker)
            if completed is not None and completed.is_aborted:
                aborted.append(aborted_transaction(completed))
    segment.close_files()
    return aborted


def rebuild_leader_epochs(segments: Sequence[Segment], leader_epochs: LeaderEpochs) -> None:
    """Takes the epochs from the headers of all batches, because the checkpoint is missing or unreadable.

    Raises OSError, TornLogError.
    """
    for segment in segments:
        for _, header, _ in scan_headers(partial(os.pread, segment.open_file()), 0, segment.size_bytes):
            leader_epochs.note_batch(header.partition_leader_epoch, header.base_offset)
        segment.close_files()


def _remove_stray_snapshots(directory: PartitionDirectory, segments: Sequence[Segment]) -> None:
    """Keeps the newest snapshot and those at the base offset of a segment, and removes the others.

    Each close leaves a snapshot at the log end of that time.
    """
    bases = {segment.base_offset for segment in segments}
    for offset in directory.offsets_of(SNAPSHOT_SUFFIX)[:-1]:
        if offset not in bases:
            os.unlink(directory.file(offset, SNAPSHOT_SUFFIX))


def _marker(fd: int, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    try:
        return end_transaction_marker(os.pread(fd, header.size_bytes, position))
    except ValueError as error:
        raise TornLogError(position, str(error)) from error


def remove_snapshots(directory: PartitionDirectory, *, above: int = -1) -> None:
    """Removes the snapshots above an offset, by default all of them."""
    for snapshot_offset in directory.offsets_of(SNAPSHOT_SUFFIX):
        if snapshot_offset > above:
            os.unlink(directory.file(snapshot_offset, SNAPSHOT_SUFFIX))


def remove_snapshots_below(directory: PartitionDirectory, offset: int) -> None:
    """Removes the snapshots below the base offset of the first segment."""
    for snapshot_offset in directory.offsets_of(SNAPSHOT_SUFFIX):
        if snapshot_offset < offset:
            Path(directory.file(snapshot_offset, SNAPSHOT_SUFFIX)).unlink(missing_ok=True)


def read_leader_epochs(directory: PartitionDirectory) -> LeaderEpochs:
    """Reads `leader-epoch-checkpoint`. Raises OSError.

    The result is empty if the file is absent or unreadable: then opening takes the epochs from the batches.
    """
    path = directory.named(LEADER_EPOCHS_FILE)
    try:
        return LeaderEpochs.decode(path.read_bytes())
    except FileNotFoundError:
        return LeaderEpochs()
    except CorruptFileError as error:
        _log.warning("leader epochs are taken from the log", path=str(path), reason=str(error))
        return LeaderEpochs()


def strand_segment(segment: Segment) -> None:
    """Takes a whole segment out of its log. Removes its indexes, because they can be built again. Raises
    OSError.
    """
    target = _free_name(segment.path)
    os.rename(segment.path, target)
    segment.remove_files()
    _say(target, segment.size_bytes)


def strand_end(segment: Segment, position: int) -> None:
    """Copies the end of a segment, from `position`, durably. Only zeros, which a crash of the machine can
    leave, are not worth a copy. Raises OSError.
    """
    fd, size = segment.open_file(), segment.size_bytes
    if _is_zero(fd, position, size):
        return
    target = _free_name(f"{segment.path}.from-{position}")
    with open(target, "xb", buffering=0) as copy:
        at = position
        while at < size:
            at += copy.write(os.pread(fd, min(_CHUNK_BYTES, size - at), at))
    sync_file(target)
    segment.directory.sync()
    _say(target, size - position)


def _is_zero(fd: int, position: int, end: int) -> bool:
    return not any(
        os.pread(fd, min(_CHUNK_BYTES, end - at), at).strip(b"\0")
        for at in range(position, end, _CHUNK_BYTES)
    )


def _free_name(path: str) -> str:
    target, number = path + STRANDED_SUFFIX, 0
    while os.path.exists(target):
        number += 1
        target = f"{path}.{number}{STRANDED_SUFFIX}"
    return target


def _say(path: str, size_bytes: int) -> None:
    _log.warning("recovery keeps what it takes out of a log", file=path, size_bytes=size_bytes)
