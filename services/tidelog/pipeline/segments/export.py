"""Copies closed segments with their indexes and checkpoints to a directory or an object store, in a layout
that the segment source, Apache Kafka's dump tool and `tidelog dump-log` read like a data directory.

The export can run again and again into the same target: existing files stay, and new ones are added. It may
be killed at any time. A manifest in the directory of each partition of the export says which part of the log
is there and which part was lost before it could be exported. Kafka's tools and the segment source ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from crc32c import crc32c

from tidelog.log_format.directory import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    encode_offsets,
    file_name,
)
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.log_files import (
    READ_UNCOMMITTED,
    LogDirectoryListing,
    OffsetsMissingError,
    PartitionLog,
    SegmentFile,
    checkpoint,
)
from tidelog.pipeline.segments.storage import FileEntry, Storage, WritableStorage
from tidelog.pipeline.segments.visible import visible_logs

MANIFEST_FILE: Final = "tidelog-export.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """`modified_ms` and the size are the source's. The CRC-32C covers the contents at both ends."""

    size_bytes: int
    modified_ms: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`end_offset` is the exclusive end of the newest exported segment. `lost` holds the offsets [start, end)
    that were deleted before they could be exported, which the user accepted.
    """

    topic_id: str | None
    end_offset: int
    files: Mapping[str, ExportedFile] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()

    def with_file(self, name: str, file: ExportedFile) -> Manifest:
        return replace(self, files={**self.files, name: file})

    def without(self, names: Sequence[str]) -> Manifest:
        return replace(self, files={name: file for name, file in self.files.items() if name not in names})

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Parses a manifest. Raises PipelineError."""
        try:
            read = json.loads(text)
            if read["format"] != _FORMAT:
                raise ValueError(f"format {read['format']}")
            return cls(
                read["topic_id"],
                int(read["end_offset"]),
                {name: ExportedFile(**file) for name, file in read["files"].items()},
                tuple((int(start), int(end)) for start, end in read["lost"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"{path} cannot be read ({error}): delete it, and the export compares each file again"
            ) from error


def closed_segments(segments: Sequence[SegmentFile], high_watermark: int) -> list[SegmentFile]:
    """Returns the segments that only compaction can change and that are committed completely."""
    return [
        segment
        for segment in segments
        if segment.next_base_offset is not None and segment.next_base_offset <= high_watermark
    ]


def lost_before_export(
    manifest: Manifest | None, closed: Sequence[SegmentFile], log_start_offset: int
) -> tuple[int, int] | None:
    """Returns the offsets [start, end) between the exported segments and the source's oldest segment."""
    begin = max(log_start_offset, closed[0].base_offset) if closed else log_start_offset
    if manifest is None or manifest.end_offset >= begin:
        return None
    return manifest.end_offset, begin


def superseded(exported_bases: Sequence[int], closed: Sequence[SegmentFile]) -> list[int]:
    """Returns the exported segments that the source has since merged into others. Segments older than the
    source's are kept.
    """
    if not closed:
        return []
    present = {segment.base_offset for segment in closed}
    first, end = closed[0].base_offset, closed[-1].next_base_offset or 0
    return [base for base in exported_bases if first < base < end and base not in present]


_CHUNK_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 5
# The log is copied last, so that its indexes exist when it becomes visible.
_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)


@dataclass(slots=True)
class ExportSummary:
    """`ends` gives the end of each partition in the export. Manifest describes `lost`."""

    copied_files: int = 0
    copied_bytes: int = 0
    kept_files: int = 0
    removed_files: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    lost: dict[TopicPartition, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """`verifies_all` also compares the files of earlier runs by their contents. `accepts_loss` continues
    although offsets were deleted before the export.
    """

    source: Storage
    target: WritableStorage
    verifies_all: bool = False
    accepts_loss: bool = False
    on_bytes: Callable[[str, int], None] = lambda name, count: None
    """A callback that receives the current file and the number of bytes copied since the last call."""


def files_to_come(logs: Sequence[PartitionLog]) -> int:
    """Returns the bytes of all closed segments, whether they are copied or not, for a progress bar."""
    return sum(s.size_bytes for log in logs for s in closed_segments(log.segments, log.high_watermark))


def export_segments(
    settings: ExportSettings, roots: Sequence[str], topics: Collection[str] | None, target_path: str
) -> ExportSummary:
    """Exports the segments. Raises OffsetsMissingError (see `accepts_loss`), PipelineError."""
    target_path = target_path.rstrip("/")
    summary = ExportSummary()
    compacted: set[TopicPartition] = set()
    starts: dict[TopicPartition, int] = {}
    listing = LogDirectoryListing(target_path, ())
    earlier = checkpoint(settings.target, listing, LOG_START_OFFSET_CHECKPOINT)
    for log in source_logs(settings.source, roots, topics):
        place = TopicPartition(log.topic, log.partition)
        for attempt in range(_ATTEMPTS):
            try:
                end, start = _PartitionExport(settings, log, target_path, summary, earlier).run()
                break
            except FileNotFoundError as error:  # retention or compaction deleted the file first
                if attempt + 1 == _ATTEMPTS:
                    raise PipelineError(
                        f"{error} disappeared during the export; run the export again"
                    ) from error
                again = source_logs(settings.source, roots, [log.topic])
                log = next(one for one in again if one.partition == place.partition)
        summary.ends[place] = end
        starts[place] = start
        if log.is_compacted:
            compacted.add(place)
    _write_checkpoints(settings.target, target_path, summary.ends, starts, compacted)
    return summary


def source_logs(storage: Storage, roots: Sequence[str], topics: Collection[str] | None) -> list[PartitionLog]:
    return visible_logs(storage, roots, topics, READ_UNCOMMITTED, unknown_is_empty=True)


class _PartitionExport:
    def __init__(
        self,
        settings: ExportSettings,
        log: PartitionLog,
        target_path: str,
        summary: ExportSummary,
        earlier_starts: Mapping[TopicPartition, int],
    ) -> None:
        self._settings = settings
        self._earlier_starts = earlier_starts
        self._log = log
        self._summary = summary
        self._directory = f"{target_path}/{log.topic}-{log.partition}"
        self._there = {entry.name: entry for entry in settings.target.listing(self._directory)}
        self._here = {entry.name: entry for entry in settings.source.listing(log.directory)}
        self._manifest = Manifest(log.topic_id, log.log_start_offset)

    def run(self) -> tuple[int, int]:
        """Exports the partition and returns its (end, start) in the export."""
        place = TopicPartition(self._log.topic, self._log.partition)
        closed = closed_segments(self._log.segments, self._log.high_watermark)
        known = self._read_manifest()
        start = self._log.log_start_offset
        if known is not None:
            self._manifest = known
            start = self._earlier_starts.get(place, start)
            lost = lost_before_export(known, closed, self._log.log_start_offset)
            if lost is not None:
                self._refuse_loss(lost)
                self._manifest = replace(known, lost=(*known.lost, lost))
        if self._manifest.lost:
            # Readers consider offsets between two segments compacted, so the export begins after the newest
            # gap.
            start = max(start, self._manifest.lost[-1][1])
            self._summary.lost[place] = self._manifest.lost
        for name in (PARTITION_METADATA_FILE, LEADER_EPOCHS_FILE):
            if name in self._here:
                self._copy(self._here[name])
        for segment in closed:
            end = segment.next_base_offset or segment.base_offset
            names = [file_name(segment.base_offset, suffix) for suffix in _SUFFIXES]
            for name in (file_name(end, SNAPSHOT_SUFFIX), *names):
                if name in self._here:
                    self._copy(self._here[name])
            self._manifest = replace(self._manifest, end_offset=max(end, self._manifest.end_offset))
            self._write_manifest()
        self._remove(superseded(self._bases(), closed))
        self._write_manifest()
        return self._manifest.end_offset, start

    def _bases(self) -> list[int]:
        return [
            int(name.removesuffix(LOG_SUFFIX))
            for name in self._there
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdecimal()
        ]

    def _refuse_loss(self, lost: tuple[int, int]) -> None:
        if not self._settings.accepts_loss:
            raise OffsetsMissingError(
                self._log.topic,
                self._log.partition,
                *lost,
                "they were deleted before they were exported (--accept-loss exports the rest)",
            )

    def _read_manifest(self) -> Manifest | None:
        if MANIFEST_FILE not in self._there:
            return None
        path = f"{self._directory}/{MANIFEST_FILE}"
        found = Manifest.from_json(self._settings.target.read(path).decode(errors="replace"), path)
        if found.topic_id != self._log.topic_id:
            raise PipelineError(
                f"{self._directory} holds topic id {found.topic_id}, but {self._log.directory} belongs to "
                "another"
                f" topic of that name ({self._log.topic_id}): export to another place"
            )
        return found

    def _write_manifest(self) -> None:
        self._settings.target.write(f"{self._directory}/{MANIFEST_FILE}", [self._manifest.to_json().encode()])

    def _copy(self, entry: FileEntry) -> None:
        """Copies a file unless it exists. Afterwards the target was read back and has the size and CRC of the
        source.
        """
        name, path = entry.name, f"{self._directory}/{entry.name}"
        recorded, there = self._manifest.files.get(name), self._there.get(name)
        if self._is_same(entry, recorded, there):
            self._summary.kept_files += 1
            self._settings.on_bytes(path, entry.size_bytes if name.endswith(LOG_SUFFIX) else 0)
            return
        sent = _Checked(self._chunks(entry, path))
        self._settings.target.write(path, sent)
        back = _Checked(_chunks_of(self._settings.target, path))
        for _ in back:
            pass
        if (sent.size_bytes, sent.crc) != (back.size_bytes, back.crc):
            raise PipelineError(
                f"{path} was written with {sent.size_bytes} bytes (CRC-32C {sent.crc:08x}), but it reads back"
                f" with {back.size_bytes} ({back.crc:08x}): the target is damaged; run the export again"
            )
        self._manifest = self._manifest.with_file(
            name, ExportedFile(sent.size_bytes, entry.modified_ms, sent.crc)
        )
        self._there[name] = FileEntry(name, path, False, sent.size_bytes, 0)
        self._summary.copied_files += 1
        self._summary.copied_bytes += sent.size_bytes

    def _is_same(self, entry: FileEntry, recorded: ExportedFile | None, there: FileEntry | None) -> bool:
        if there is None or there.size_bytes != entry.size_bytes:
            return False
        is_recorded = recorded is not None and (recorded.size_bytes, recorded.modified_ms) == (
            entry.size_bytes,
            entry.modified_ms,
        )
        if is_recorded and not self._settings.verifies_all:
            return True
        # The last run was killed before it wrote the manifest, or all files are to be compared.
        target = _crc_of(self._settings.target, there.path)
        source = _crc_of(self._settings.source, entry.path)
        if target == source:
            self._manifest = self._manifest.with_file(
                entry.name, ExportedFile(entry.size_bytes, entry.modified_ms, source)
            )
        return target == source

    def _chunks(self, entry: FileEntry, path: str) -> Iterator[bytes]:
        counts = entry.name.endswith(LOG_SUFFIX)
        for chunk in _chunks_of(self._settings.source, entry.path):
            yield chunk
            self._settings.on_bytes(path, len(chunk) if counts else 0)

    def _remove(self, bases: Sequence[int]) -> None:
        names = [
            name
            for base in bases
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
            if (name := file_name(base, suffix)) in self._there
        ]
        for name in names:
            self._settings.target.delete(f"{self._directory}/{name}")
        self._manifest = self._manifest.without(names)
        self._summary.removed_files += len(names)


class _Checked:
    """Passes chunks through and computes their size and CRC-32C."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.size_bytes = 0
        self.crc = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size_bytes += len(chunk)
            self.crc = crc32c(chunk, self.crc)
            yield chunk


def _chunks_of(storage: Storage, path: str) -> Iterator[bytes]:
    with storage.open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _crc_of(storage: Storage, path: str) -> int:
    checked = _Checked(_chunks_of(storage, path))
    for _ in checked:
        pass
    return checked.crc


def _write_checkpoints(
    target: WritableStorage,
    path: str,
    ends: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
    compacted: set[TopicPartition],
) -> None:
    """Writes the checkpoints last, because a file counts as exported only if they name it. Partitions of
    earlier runs stay in the checkpoints.
    """
    listing = LogDirectoryListing(path, ())
    for name, offsets in (
        (LOG_START_OFFSET_CHECKPOINT, starts),
        (CLEANER_OFFSET_CHECKPOINT, {place: ends[place] for place in compacted}),
        (HIGH_WATERMARK_CHECKPOINT, ends),
    ):
        merged = {**checkpoint(target, listing, name), **offsets}
        if merged:
            target.write(f"{path}/{name}", [encode_offsets(merged)])
