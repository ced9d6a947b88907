"""Determines which offsets of which files may be read: never past the high watermark or the last stable
offset.

The high watermark is the checkpointed one, so the acknowledged records of the last seconds are not visible
yet. The last stable offset is found as recovery finds it (Kafka's `ProducerStateManager`): from the newest
producer snapshot at or below the high watermark and the batches between them. It is the first offset of the
oldest open transaction.

Below a high watermark, all replicas are equal, except after an unclean election. Then the replica with the
newest leader epoch defines where an older epoch ended (KIP-101), and anything beyond that in another replica
was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from tidelog.log_format.directory import (
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    CorruptFileError,
    decode_topic_id,
    file_name,
    offsets_of,
)
from tidelog.log_format.entries import (
    ABORTED_ENTRY,
    SnapshotEntry,
    decode_aborted_transactions,
    decode_snapshot,
)
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.topics import topic_id_text
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    UNKNOWN_HIGH_WATERMARK,
    PartitionLog,
    ReplicaDirectory,
    SegmentFile,
    batch_position,
    log_directories,
    replica_directories,
    scan_batches,
)
from tidelog.pipeline.segments.storage import FileEntry, Storage
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BatchHeader, EndTransactionMarker
from tidelog.records.record import end_transaction_marker

_ATTEMPTS: Final = 5


class OpenTransactions:
    """`aborted` holds the transactions that were seen to abort."""

    __slots__ = ("_first_offsets", "aborted")

    def __init__(self, snapshot: Iterable[SnapshotEntry] = ()) -> None:
        # The newest entry of a producer id counts, because tidelog writes several.
        self._first_offsets = {
            producer_id: first_offset
            for producer_id, first_offset in {e.producer_id: e.txn_first_offset for e in snapshot}.items()
            if first_offset >= 0
        }
        self.aborted: list[AbortedTransaction] = []

    def copy(self) -> OpenTransactions:
        same = OpenTransactions()
        same._first_offsets = dict(self._first_offsets)
        same.aborted = list(self.aborted)
        return same

    def see(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> None:
        """Processes the next batch of the log. `marker` is set for a control batch with an end marker."""
        if header.is_control:
            if marker is None:
                return
            first_offset = self._first_offsets.pop(header.producer_id, None)
            if first_offset is not None and not marker.is_commit:
                marker_offset = header.last_offset
                self.aborted.append(
                    AbortedTransaction(
                        header.producer_id,
                        first_offset,
                        marker_offset,
                        min(self._first_offsets.values(), default=marker_offset + 1),
                    )
                )
        elif header.is_transactional:
            self._first_offsets.setdefault(header.producer_id, header.base_offset)

    def first_offset(self) -> int | None:
        """Returns the first offset of the oldest open transaction."""
        return min(self._first_offsets.values(), default=None)


def choose_replicas(found: Iterable[PartitionLog], *, unknown_is_empty: bool = False) -> list[PartitionLog]:
    """Chooses one log for each partition name. Raises PipelineError if replicas belong to two topics of the
    same name, or if no checkpoint names the high watermark.
    """
    ordered = sorted(found, key=lambda log: (log.topic, log.partition))
    return [
        _choose(list(replicas), unknown_is_empty)
        for _, replicas in groupby(ordered, key=lambda log: (log.topic, log.partition))
    ]


def _choose(replicas: Sequence[PartitionLog], unknown_is_empty: bool) -> PartitionLog:
    name = f"{replicas[0].topic}-{replicas[0].partition}"
    topic_ids = {log.topic_id for log in replicas if log.topic_id is not None}
    if len(topic_ids) > 1:
        where = ", ".join(f"{log.directory} (topic id {log.topic_id})" for log in replicas)
        raise PipelineError(f"{name} belongs to several topics of the same name: {where}; name one directory")
    known = [log for log in replicas if log.high_watermark != UNKNOWN_HIGH_WATERMARK]
    if not known:
        log = replicas[0]
        if unknown_is_empty:
            start = log.log_start_offset
            return replace(log, high_watermark=start, last_stable_offset=start, aborted=())
        raise PipelineError(
            f"no checkpoint says how far {name} in {log.directory} is committed: let its broker run for"
            f" some more seconds (replica.high.watermark.checkpoint.interval.ms), then copy or read it again"
        )
    newest = max(known, key=lambda log: _epochs(log).latest_epoch)
    agreed = [_cut_to(_epochs(newest), log) for log in known]
    return max(
        agreed,
        key=lambda log: (
            _epochs(log).epoch_for_offset(log.end_offset - 1),
            log.end_offset,
            -log.log_start_offset,
        ),
    )


def _epochs(log: PartitionLog) -> LeaderEpochs:
    return LeaderEpochs([EpochEntry(*entry) for entry in log.leader_epochs])


def _cut_to(newest: LeaderEpochs, log: PartitionLog) -> PartitionLog:
    epoch = _epochs(log).epoch_for_offset(log.high_watermark - 1)
    agreed_end = newest.end_offset_for(epoch, log.high_watermark).end_offset
    if agreed_end < 0 or agreed_end >= log.high_watermark:
        return log
    return replace(
        log,
        high_watermark=max(agreed_end, log.log_start_offset),
        last_stable_offset=max(min(agreed_end, log.last_stable_offset), log.log_start_offset),
    )


def visible_logs(
    storage: Storage,
    roots: Sequence[str],
    topics: Collection[str] | None = None,
    isolation_level: str = READ_COMMITTED,
    *,
    unknown_is_empty: bool = False,
) -> list[PartitionLog]:
    """Returns the partitions of `topics` (None: all but internal ones) below `roots` by name, each from its
    most complete replica. `roots` are data directories, copies or exports of them, or directories above
    these.

    A partition whose high watermark is in no checkpoint is rejected, or with `unknown_is_empty` is considered
    empty for now. Raises PipelineError with the directory and the next step.
    """
    if isolation_level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise PipelineError(
            f"isolation level {isolation_level!r} is neither {READ_COMMITTED} nor {READ_UNCOMMITTED}"
        )
    gone: FileNotFoundError | None = None
    for _ in range(_ATTEMPTS):  # a broker deleted or compacted segments in the meantime
        try:
            directories = log_directories(storage, roots)
            replicas = replica_directories(storage, directories, topics)
            found = [visible_log(storage, replica, isolation_level) for replica in replicas]
        except FileNotFoundError as error:
            gone = error
            continue
        logs = choose_replicas([log for log in found if log is not None], unknown_is_empty=unknown_is_empty)
        _check_all_found(topics, logs, roots)
        return logs
    raise PipelineError(f"segments disappear during the listing ({gone}): read a copy of {roots[0]}")


def _check_all_found(
    topics: Collection[str] | None, logs: Sequence[PartitionLog], roots: Sequence[str]
) -> None:
    missing = sorted(set(topics or ()) - {log.topic for log in logs})
    if missing:
        raise PipelineError(f"{', '.join(roots)} contains no partition of {', '.join(missing)}")


def visible_log(storage: Storage, replica: ReplicaDirectory, isolation_level: str) -> PartitionLog | None:
    """Returns the log that one replica's files contain, or None if the directory has no segments. Raises
    FileNotFoundError if a file is deleted in the meantime.
    """
    files = {entry.name: entry for entry in storage.listing(replica.path)}
    segments = _segments(files)
    if not segments:
        return None
    log_start = max(replica.log_start_offset, segments[0].base_offset)
    # Segments below the start may show where a transaction that is still open began.
    all_segments = segments
    segments = tuple(s for s in segments if s.next_base_offset is None or s.next_base_offset > log_start)
    high_watermark = replica.high_watermark
    if high_watermark is None:
        high_watermark = (
            UNKNOWN_HIGH_WATERMARK if any(segment.size_bytes for segment in segments) else log_start
        )
    topic_id = _topic_id(storage, files.get(PARTITION_METADATA_FILE))
    leader_epochs = _leader_epochs(storage, files.get(LEADER_EPOCHS_FILE))
    end = _End(log_start, log_start, ())
    if high_watermark > log_start and isolation_level == READ_UNCOMMITTED:
        end = _uncommitted_end(storage, segments, high_watermark)
    elif high_watermark > log_start:
        identity = (replica.path, topic_id, leader_epochs)
        end = _committed_end(storage, files, all_segments, high_watermark, identity)
    return PartitionLog(
        topic=replica.topic_partition.topic,
        topic_id=topic_id,
        partition=replica.topic_partition.partition,
        directory=replica.path,
        log_start_offset=log_start,
        high_watermark=UNKNOWN_HIGH_WATERMARK
        if high_watermark == UNKNOWN_HIGH_WATERMARK
        else max(end.high_watermark, log_start),
        last_stable_offset=max(end.last_stable_offset, log_start),
        leader_epochs=leader_epochs,
        segments=segments,
        aborted=end.aborted,
        isolation_level=isolation_level,
        is_compacted=replica.is_compacted,
    )


def _segments(files: dict[str, FileEntry]) -> tuple[SegmentFile, ...]:
    bases = offsets_of(files, LOG_SUFFIX)

    def path(base_offset: int, suffix: str) -> str | None:
        entry = files.get(file_name(base_offset, suffix))
        return entry.path if entry else None

    found = []
    for base_offset, next_base_offset in zip(bases, [*bases[1:], None], strict=True):
        log = files[file_name(base_offset, LOG_SUFFIX)]
        found.append(
            SegmentFile(
                base_offset,
                next_base_offset,
                log.path,
                log.size_bytes,
                path(base_offset, OFFSET_INDEX_SUFFIX),
                path(base_offset, TIME_INDEX_SUFFIX),
                log.modified_ms,
                path(base_offset, TRANSACTION_INDEX_SUFFIX),
            )
        )
    return tuple(found)


def _topic_id(storage: Storage, entry: FileEntry | None) -> str | None:
    if entry is None:
        return None
    try:
        topic_id = decode_topic_id(storage.read(entry.path), entry.path)
    except CorruptFileError:
        return None
    return None if topic_id is None else topic_id_text(topic_id)


def _leader_epochs(storage: Storage, entry: FileEntry | None) -> tuple[tuple[int, int], ...]:
    if entry is None:
        return ()
    try:
        return tuple((epoch, start) for epoch, start in LeaderEpochs.decode(storage.read(entry.path)))
    except CorruptFileError as error:
        raise PipelineError(
            f"{entry.path} cannot be read ({error}): copy the directory again, or start its broker"
        ) from error


class _End(NamedTuple):
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...]


def _uncommitted_end(storage: Storage, segments: Sequence[SegmentFile], high_watermark: int) -> _End:
    """Returns the end for read_uncommitted. `high_watermark` is limited to the log's end, because the files
    of a copy may be older than its checkpoint.
    """
    newest, end = segments[-1], high_watermark
    if high_watermark > newest.base_offset:
        end = _replay(storage, newest, high_watermark - 1, high_watermark, OpenTransactions())
    return _End(end, end, ())


class _Seen(NamedTuple):
    """The last known state of a log, so that a follower of the log need not start from the beginning each
    time. Below a high watermark, nothing changes as long as topic id and leader epochs are the same.
    """

    identity: object
    end: int
    transactions: OpenTransactions


_SEEN_LOGS: Final = 10_000
_seen: dict[str, _Seen] = {}
"""The known states by directory."""


def _committed_end(
    storage: Storage,
    files: dict[str, FileEntry],
    segments: Sequence[SegmentFile],
    high_watermark: int,
    identity: tuple[str, object, object],
) -> _End:
    known, transactions = _snapshot_at_or_below(storage, files, high_watermark)
    seen = _seen.pop(identity[0], None)
    if seen is not None and seen.identity == identity and known < seen.end <= high_watermark:
        known, transactions = seen.end, seen.transactions.copy()
    *older, newest = segments
    for segment in older:
        assert segment.next_base_offset is not None
        if segment.next_base_offset > known and segment.base_offset < high_watermark:
            _replay(storage, segment, known, high_watermark, transactions)
    end = high_watermark
    if high_watermark > newest.base_offset:
        end = _replay(storage, newest, known, high_watermark, transactions)
    if len(_seen) >= _SEEN_LOGS:
        _seen.clear()
    _seen[identity[0]] = _Seen(identity, end, transactions.copy())
    first_open = transactions.first_offset()
    last_stable_offset = end if first_open is None else min(end, first_open)
    aborted = {one.last_offset: one for one in (*_indexed_aborts(storage, segments), *transactions.aborted)}
    visible = sorted(
        (one for one in aborted.values() if one.first_offset < last_stable_offset),
        key=lambda one: (one.first_offset, one.producer_id),
    )
    return _End(end, last_stable_offset, tuple(visible))


def _snapshot_at_or_below(
    storage: Storage, files: dict[str, FileEntry], offset: int
) -> tuple[int, OpenTransactions]:
    for found in reversed(offsets_of(files, SNAPSHOT_SUFFIX)):
        if found > offset:
            continue
        try:
            return found, OpenTransactions(
                decode_snapshot(storage.read(files[file_name(found, SNAPSHOT_SUFFIX)].path))
            )
        except CorruptFileError:
            continue  # a crash damaged it; an older snapshot and more batches give the same result
    return 0, OpenTransactions()


def _replay(
    storage: Storage, segment: SegmentFile, start: int, end: int, transactions: OpenTransactions
) -> int:
    """Passes the batches of [start, end) to `transactions`. Returns where they end, at most `end`."""
    with storage.open(segment.log_path) as file:
        size = file.size()
        reached = segment.base_offset
        for position in dict.fromkeys((batch_position(storage, segment, start, size), 0)):
            for batch in scan_batches(file, segment, position, size):
                header = batch.header
                if header.base_offset >= end:
                    return end
                reached = header.last_offset + 1
                if header.base_offset >= start and header.producer_id >= 0:
                    marker = None
                    if header.is_control:
                        marker = end_transaction_marker(file.read_at(header.size_bytes, batch.position))
                    transactions.see(header, marker)
                if reached >= end:
                    return end
            if reached > segment.base_offset:  # otherwise the index was wrong
                break
    is_last = segment.next_base_offset is None
    return reached if is_last else end


def _indexed_aborts(storage: Storage, segments: Sequence[SegmentFile]) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for segment in segments:
        if segment.transaction_index_path is None:
            continue
        data = storage.read(segment.transaction_index_path)
        whole = len(data) - len(data) % ABORTED_ENTRY.size  # the writer may be within an entry
        try:
            found += decode_aborted_transactions(data[:whole], segment.base_offset)
        except CorruptFileError as error:
            raise PipelineError(
                f"{segment.transaction_index_path} cannot be read ({error}): copy the directory again, or"
                f" start its broker, which rebuilds the index"
            ) from error
    return found
