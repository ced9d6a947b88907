"""The directory of one partition: the names of its files, its topic id, and durable writes.

As in Kafka, a file of a segment is named by the segment's base offset in 20 digits, and a suffix. The topic
id is in `partition.metadata` (Kafka's `PartitionMetadataFile`).

The file `segments-checkpoint` shows whether a segment is missing that the broker did not remove (ADR 0034).
It has the version `0` in its first line, the number of segments in the second, and then the base offset of
each segment in a line. Kafka ignores it. A segment that it does not name is sound, and a name without a
segment is a loss. So the order is:

- A new segment's files are created, then its name is written, then records are appended.
- A name is removed durably (fsync), then its files are removed, renamed or replaced.

A crash of the machine can lose the files of new segments although their names are on disk, but only at or
above the recovery point. A list that cannot be written is removed: without it, nothing is checked.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from tidelog.broker.log.errors import CorruptFileError
from tidelog.model.topics import TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
LEADER_EPOCHS_FILE: Final = "leader-epoch-checkpoint"
SEGMENTS_CHECKPOINT_FILE: Final = "segments-checkpoint"
MISSING_SEGMENTS_NAMED: Final = 3
"""The number of missing segments that a message names."""
_CHECKPOINT_VERSION: Final = "0"
PARTITION_METADATA_FILE: Final = "partition.metadata"
DELETED_DIRECTORY_SUFFIX: Final = "-delete"
_OFFSET_DIGITS: Final = 20
_MAX_NAME_LENGTH: Final = 255

_log = structlog.get_logger(__name__)


class PartitionDirectory:
    """The path of a partition's directory; it changes when the partition is deleted.

    `lock` protects the few file operations that two threads may start at the same time.
    """

    __slots__ = ("lock", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Lock()

    def file(self, base_offset: int, suffix: str) -> str:
        return f"{self.path}/{base_offset:020d}{suffix}"

    def named(self, name: str) -> Path:
        return Path(self.path, name)

    def offsets_of(self, suffix: str) -> list[int]:
        """Returns the base offsets of the files with this suffix, sorted."""
        return sorted(
            int(stem)
            for name in os.listdir(self.path)
            if name.endswith(suffix)
            and len(stem := name.removesuffix(suffix)) == _OFFSET_DIGITS
            and stem.isdecimal()
        )

    def sync(self) -> None:
        """Makes the names of new, renamed and deleted files durable (fsync of the directory)."""
        sync_directory(self.path)


def partition_directory_name(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def parse_partition_directory_name(name: str) -> TopicPartition | None:
    """Returns the partition of a directory such as `topic-3`, None if the name has another form."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not (partition.isdecimal() and partition.isascii()):
        return None
    return TopicPartition(topic, int(partition))


def renamed_directory_name(topic_partition: TopicPartition, unique: uuid.UUID, suffix: str) -> str:
    """Returns Kafka's `<topic>-<partition>.<unique><suffix>`.

    The topic is shortened if the name would exceed the limit of the file system.
    """
    ending = f"-{topic_partition.partition}.{unique.hex}{suffix}"
    return topic_partition.topic[: _MAX_NAME_LENGTH - len(ending)] + ending


def encode_uuid(value: uuid.UUID) -> str:
    """Returns Kafka's text form of a UUID: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a base64 UUID") from error


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """Returns the topic id, None if the file does not exist or is empty.

    The file is empty if the machine failed soon after the file was created. Raises CorruptFileError, OSError.
    """
    path = directory / PARTITION_METADATA_FILE
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if fields.get("version") == "0":
            return decode_uuid(fields.get("topic_id", ""))
    except ValueError:
        pass
    raise CorruptFileError(f"{path}: expected `version: 0` and `topic_id: ...`")


def write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Writes the file; the first flush of the log makes it durable. Raises OSError."""
    content = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode("ascii")
    write_atomically(directory / PARTITION_METADATA_FILE, content, syncs=False)


def write_atomically(path: str | Path, content: bytes, *, syncs: bool = True) -> None:
    """Replaces the file, or creates it. If the process dies, the file has either the old or the new content.

    With `syncs`, this also holds if the machine fails. Raises OSError.
    """
    temporary = f"{os.fspath(path)}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            written = file.write(content)
            if written != len(content):
                raise OSError(f"{temporary}: {written} of {len(content)} bytes written")
            if syncs:
                os.fsync(fd)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    if syncs:
        sync_directory(os.path.dirname(path) or ".")


def sync_directory(path: str | Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str | Path) -> None:
    """Makes the contents and the size of a file durable.

    It opens a separate descriptor, so any thread may call it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


class SegmentsCheckpoint:
    """The list of one partition. Any thread may call the methods; they raise OSError.

    Only `remove` waits for the disk, so the event loop must not call it.
    """

    __slots__ = ("_base_offsets", "_directory", "_is_removal_durable", "_lock")

    def __init__(self, directory: PartitionDirectory, base_offsets: Iterable[int] = ()) -> None:
        self._directory = directory
        self._base_offsets = frozenset(base_offsets)
        self._is_removal_durable = True
        self._lock = threading.Lock()

    @classmethod
    def read(cls, directory: PartitionDirectory) -> SegmentsCheckpoint:
        """Reads the list. It is empty if the file does not exist or if a crash of the machine damaged it."""
        path = directory.named(SEGMENTS_CHECKPOINT_FILE)
        try:
            return cls(directory, decode_base_offsets(path.read_bytes()))
        except FileNotFoundError:
            pass
        except ValueError as error:
            _log.warning("the list of segments is written again", path=str(path), reason=str(error))
            path.unlink(missing_ok=True)
        return cls(directory)

    def missing(self, found: Collection[int]) -> list[int]:
        """Returns the base offsets in the list for which there is no segment in `found`, sorted."""
        return sorted(self._base_offsets.difference(found))

    def between(self, begin_offset: int, end_offset: int) -> list[int]:
        """Returns the base offsets in the list from `begin_offset` to below `end_offset`."""
        return [base for base in self._base_offsets if begin_offset <= base < end_offset]

    def set_to(self, base_offsets: Iterable[int]) -> None:
        """Makes these the segments of the list. Writes the file only if that changes the list."""
        with self._lock:
            self._change(frozenset(base_offsets))

    def add(self, base_offsets: Iterable[int], *, instead_of: Iterable[int] = ()) -> None:
        """Adds segments whose files exist, and removes empty ones without waiting for the disk.

        No record is lost with an empty segment, and the next flush makes the list durable.
        """
        with self._lock:
            self._change(self._base_offsets.difference(instead_of).union(base_offsets))

    def remove(self, base_offsets: Iterable[int]) -> None:
        """Removes segments durably, before their files are removed, renamed or replaced."""
        with self._lock:
            base_offsets = tuple(base_offsets)
            if self._is_removal_durable and self._base_offsets.isdisjoint(base_offsets):
                return
            self._is_removal_durable = False  # until the list has reached the disk, also after a failure
            self._change(self._base_offsets.difference(base_offsets))
        # Outside the lock, because the event loop takes it. A newer list lacks the names, too.
        with suppress(FileNotFoundError):
            sync_file(self._directory.named(SEGMENTS_CHECKPOINT_FILE))
        self._directory.sync()
        self._is_removal_durable = True

    def _change(self, base_offsets: frozenset[int]) -> None:
        if base_offsets == self._base_offsets:
            return
        path = self._directory.named(SEGMENTS_CHECKPOINT_FILE)
        try:
            write_atomically(path, encode_base_offsets(base_offsets), syncs=False)
        except OSError as error:  # for example, a full disk, on which retention must still free space
            path.unlink(missing_ok=True)
            _log.warning(
                "the list of segments cannot be written: missing segments are not detected until it can",
                path=str(path),
                reason=str(error),
            )
        self._base_offsets = base_offsets


def encode_base_offsets(base_offsets: Collection[int]) -> bytes:
    lines = [_CHECKPOINT_VERSION, str(len(base_offsets)), *map(str, sorted(base_offsets))]
    return ("\n".join(lines) + "\n").encode()


def decode_base_offsets(content: bytes) -> list[int]:
    """Raises ValueError if the list is not complete."""
    version, *numbers = content.decode("ascii").split("\n")
    if (
        version != _CHECKPOINT_VERSION
        or len(numbers) < 2
        or numbers[-1]
        or int(numbers[0]) != len(numbers) - 2
    ):
        raise ValueError("expected version 0, the number of segments, and a line for each")
    return [int(number) for number in numbers[1:-1]]


def missing_names(missing: Sequence[int], found: Collection[int]) -> str:
    """Returns the names of missing segments with their offsets, such as "000...0.log of offsets 0 to 56".
    `missing` is sorted.
    """
    following = sorted({*missing, *found})
    named = []
    for base_offset in missing[:MISSING_SEGMENTS_NAMED]:
        after = next((other for other in following if other > base_offset), None)
        offsets = (
            f"from offset {base_offset}" if after is None else f"of offsets {base_offset} to {after - 1}"
        )
        named.append(f"{base_offset:020d}{LOG_SUFFIX} {offsets}")
    if len(missing) > MISSING_SEGMENTS_NAMED:
        named.append(f"{len(missing) - MISSING_SEGMENTS_NAMED} more")
    return ", ".join(named)


def describe_missing(missing: Sequence[int], found: Collection[int], directory: PartitionDirectory) -> str:
    """Returns a message that names the missing offsets and the next step. `missing` is sorted."""
    return (
        f"segments are missing that the broker did not remove: {missing_names(missing, found)}. "
        f"Restore the files, or remove {directory.named(SEGMENTS_CHECKPOINT_FILE)} to serve what is left"
    )
