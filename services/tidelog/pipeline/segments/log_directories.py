"""Finds the partitions in brokers' data directories, or in copies of them, and reads the checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.broker.log.checkpoint_file import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    decode_offsets,
)
from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.log_directory import NOT_OF_BROKERS
from tidelog.broker.log.meta_properties import META_PROPERTIES_FILE
from tidelog.broker.log.partition_directory import LOG_SUFFIX, parse_partition_directory_name
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.storage import FileEntry, Storage

MAX_DEPTH: Final = 4
"""The maximum depth of a log directory below a root, for example STATE/kafka-1/1/data."""
_OF_A_LOG_DIRECTORY: Final = frozenset({HIGH_WATERMARK_CHECKPOINT, META_PROPERTIES_FILE})


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
        return decode_offsets(Path(path), storage.read(path))
    except FileNotFoundError:
        return {}
    except CorruptFileError as error:
        raise PipelineError(f"{error}: copy the directory again, or let its broker rewrite it") from error
