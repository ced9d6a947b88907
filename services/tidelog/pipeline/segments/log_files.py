"""The files of brokers' data directories, or of copies of them: the partitions, their readable logs, and the
batches and indexes of segments.

The driver plans logs and segments as values, and sends them to the tasks. A file that a broker is writing may
end in zeros or within an entry, so everything after the last valid entry is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.log_format.directory import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    NOT_OF_BROKERS,
    CorruptFileError,
    decode_offsets,
    parse_partition_directory_name,
)
from tidelog.log_format.entries import OFFSET_ENTRY, TIME_ENTRY
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.storage import FileEntry, Storage, is_local
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BatchHeader

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
UNKNOWN_HIGH_WATERMARK: Final = -1
"""The high watermark of a log that has data but is in no checkpoint. visible_logs never returns such a log.
"""
MAX_DEPTH: Final = 4
"""The maximum depth of a log directory below a root, for example STATE/kafka-1/1/data."""
_OF_A_LOG_DIRECTORY: Final = frozenset({HIGH_WATERMARK_CHECKPOINT, META_PROPERTIES_FILE})
LOCAL_CHUNK_BYTES: Final = 32 * 1024
REMOTE_CHUNK_BYTES: Final = 4 * 1024 * 1024
Longs: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`log_path` and the other paths are URIs or local paths, which a Storage opens.

    `next_base_offset` is None for the newest segment. `size_bytes` and `modified_ms` come from the listing.
    The newest segment may grow later, and any other segment with another size was compacted later. An index
    path is None if there is no such file. The indexes of the newest segment may end early, or in zeros.
    """

    base_offset: int
    next_base_offset: int | None
    log_path: str
    size_bytes: int
    index_path: str | None
    time_index_path: str | None
    modified_ms: int = 0
    transaction_index_path: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The readable part of one replica's log: from `start_offset` to before `end_offset`.

    `topic_id` has Kafka's text form, or is None if the directory does not contain it. `high_watermark` is the
    checkpointed one, or the log's end if the files end before it. `last_stable_offset` is the first offset of
    the oldest open transaction, and at most the high watermark. `leader_epochs` holds (epoch, start offset)
    in ascending order. `aborted` is empty unless `isolation_level` is read_committed.
    """

    topic: str
    topic_id: str | None
    partition: int
    directory: str
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    segments: tuple[SegmentFile, ...]
    aborted: tuple[AbortedTransaction, ...] = ()
    isolation_level: str = READ_COMMITTED
    is_compacted: bool = field(default=False, compare=False)

    @property
    def start_offset(self) -> int:
        return self.log_start_offset

    @property
    def end_offset(self) -> int:
        """Returns the exclusive end: the last stable offset, or the high watermark for read_uncommitted."""
        return self.last_stable_offset if self.isolation_level == READ_COMMITTED else self.high_watermark

    def segments_of(self, start: int, end: int) -> tuple[SegmentFile, ...]:
        """Returns the segments that may contain an offset of [start, end)."""
        return tuple(
            segment
            for segment in self.segments
            if segment.base_offset < end
            and (segment.next_base_offset is None or segment.next_base_offset > start)
        )

    def aborted_in(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        return tuple(
            aborted for aborted in self.aborted if aborted.first_offset < end and aborted.last_offset >= start
        )

    def epochs_of(self, start: int, end: int) -> list[list[int]]:
        """Returns [epoch, its first offset in the range] for each leader epoch of [start, end), for a
        ledger.
        """
        found: list[list[int]] = []
        starts = [*(begin for _, begin in self.leader_epochs[1:]), None]
        for (epoch, begin), next_begin in zip(self.leader_epochs, starts, strict=True):
            if begin < end and (next_begin is None or next_begin > start) and start < end:
                found.append([epoch, max(begin, start)])
        return found


class OffsetsMissingError(PipelineError):
    """Offsets [start, end) of a partition are no longer in any file."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition}: offsets {start} to {end - 1} cannot be read: {reason}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.topic, self.partition, self.start, self.end, self.reason)


def by_name(logs: Iterable[PartitionLog]) -> dict[tuple[str, int], PartitionLog]:
    return {(log.topic, log.partition): log for log in logs}


@dataclass(frozen=True, slots=True)
class ReplicaDirectory:
    """One partition's directory. `high_watermark` is None if the checkpoint does not name the partition."""

    topic_partition: TopicPartition
    path: str
    high_watermark: int | None
    log_start_offset: int
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class LogDirectoryListing:
    path: str
    entries: tuple[FileEntry, ...]


def log_directories(storage: Storage, roots: Sequence[str]) -> list[LogDirectoryListing]:
    """Returns each root that is a log directory, else the log directories below it. Raises PipelineError if a
    root has none.
    """
    found: list[LogDirectoryListing] = []
    for root in roots:
        below = list(_below(storage, root.rstrip("/") or "/", MAX_DEPTH))
        if not below:
            raise PipelineError(
                f"{root} is not a log directory: name a broker's log.dirs, a copy of it, or an export"
                f" (it contains {HIGH_WATERMARK_CHECKPOINT} and directories named TOPIC-PARTITION)"
            )
        found += below
    return list({directory.path: directory for directory in found}.values())


def _below(storage: Storage, path: str, depth: int) -> Iterator[LogDirectoryListing]:
    entries = storage.listing(path)
    names = {entry.name for entry in entries}
    directories = [entry for entry in entries if entry.is_directory]
    if names & _OF_A_LOG_DIRECTORY or any(_has_segments(storage, entry) for entry in directories):
        yield LogDirectoryListing(path, tuple(entries))
    elif depth:
        for entry in directories:
            yield from _below(storage, entry.path, depth - 1)


def _has_segments(storage: Storage, entry: FileEntry) -> bool:
    if parse_partition_directory_name(entry.name) is None:
        return False
    return any(file.name.endswith(LOG_SUFFIX) for file in storage.listing(entry.path))


def replica_directories(
    storage: Storage, directories: Sequence[LogDirectoryListing], topics: Collection[str] | None
) -> list[ReplicaDirectory]:
    """Returns the directories of `topics`, or of all but the internal topics. Raises PipelineError for a
    damaged checkpoint.
    """
    found: list[ReplicaDirectory] = []
    for directory in directories:
        # The checkpoint is read before the files, so that the files hold at least what the checkpoint says.
        high_watermarks = checkpoint(storage, directory, HIGH_WATERMARK_CHECKPOINT)
        log_start_offsets = checkpoint(storage, directory, LOG_START_OFFSET_CHECKPOINT)
        clean_offsets = checkpoint(storage, directory, CLEANER_OFFSET_CHECKPOINT)
        for entry in directory.entries:
            place = parse_partition_directory_name(entry.name) if entry.is_directory else None
            if place is None or not _is_wanted(place.topic, topics):
                continue
            found.append(
                ReplicaDirectory(
                    place,
                    entry.path,
                    high_watermarks.get(place),
                    log_start_offsets.get(place, 0),
                    place in clean_offsets,
                )
            )
    return found


def _is_wanted(topic: str, topics: Collection[str] | None) -> bool:
    return topic in topics if topics is not None else topic not in NOT_OF_BROKERS and topic[:2] != "__"


def checkpoint(storage: Storage, directory: LogDirectoryListing, name: str) -> dict[TopicPartition, int]:
    """Returns the checkpoint, which is empty if there is no such file. Raises PipelineError if it is
    damaged.
    """
    path = f"{directory.path}/{name}"
    try:
        return decode_offsets(storage.read(path), path)
    except FileNotFoundError:
        return {}
    except CorruptFileError as error:
        raise PipelineError(f"{error}: copy the directory again, or let its broker rewrite it") from error


class PlacedBatch(NamedTuple):
    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


def scan_batches(file: pa.NativeFile, segment: SegmentFile, position: int, end: int) -> Iterator[PlacedBatch]:
    """Yields the whole batches of a segment between two positions. It ends silently at the first invalid
    batch, because a writer is writing there, or was when it died.
    """
    chunk_bytes = LOCAL_CHUNK_BYTES if is_local(segment.log_path) else REMOTE_CHUNK_BYTES
    try:
        for at, header, _ in scan_headers(
            file.read_at, position, end, min_offset=segment.base_offset, chunk_bytes=chunk_bytes
        ):
            yield PlacedBatch(at, header)
    except TornLogError:
        return


def batch_position(storage: Storage, segment: SegmentFile, offset: int, size_bytes: int) -> int:
    """Returns the position of a batch of the segment that begins at or before the batch with `offset`."""
    if offset <= segment.base_offset or segment.index_path is None:
        return 0
    try:
        index = storage.read(segment.index_path)
    except FileNotFoundError:
        return 0
    return position_below(offset_entries(index, segment.base_offset, size_bytes), offset)


def offset_entries(data: bytes, base_offset: int, size_bytes: int) -> tuple[Longs, Longs]:
    """Reads an `.index` file: (last offset of a batch, position of that batch in the segment of
    `size_bytes`). Both rise.
    """
    offsets, positions = _columns(data, OFFSET_ENTRY)
    count = min(_rising(offsets, 0), _rising(positions, 1))  # the first batch has no entry
    count = min(count, int(np.searchsorted(positions[:count], size_bytes, side="left")))
    return offsets[:count] + base_offset, positions[:count]


def time_entries(data: bytes, base_offset: int) -> tuple[Longs, Longs]:
    """Reads a `.timeindex` file: (greatest timestamp so far, last offset of its batch). Both rise. A batch
    before the first entry's batch may have the same timestamp.
    """
    timestamps, offsets = _columns(data, TIME_ENTRY)
    count = min(_rising(timestamps, 0), _rising(offsets, 0))
    return timestamps[:count], offsets[:count] + base_offset


def _columns(data: bytes, entry: struct.Struct) -> tuple[Longs, Longs]:
    """Returns both columns of the whole entries of an index."""
    kind = np.dtype(",".join(f">{letter}" for letter in entry.format[1:]))
    entries = np.frombuffer(data, kind, len(data) // kind.itemsize)
    return entries["f0"].astype(np.int64), entries["f1"].astype(np.int64)


def position_below(entries: tuple[Longs, Longs], offset: int) -> int:
    """Returns the position of a batch that begins at or before the batch with `offset`."""
    offsets, positions = entries
    slot = int(np.searchsorted(offsets, offset, side="right")) - 1
    return int(positions[slot]) if slot >= 0 else 0


def _rising(column: Longs, least: int) -> int:
    """Returns how many values from the start rise strictly, where the first must be at least `least`."""
    if not len(column) or column[0] < least:
        return 0
    stops = np.flatnonzero(np.diff(column) <= 0)
    return int(stops[0]) + 1 if len(stops) else len(column)
