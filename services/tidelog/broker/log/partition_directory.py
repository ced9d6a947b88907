"""The directory of one partition: the names of its files, its topic id, and durable writes.

As in Kafka, a file of a segment is named by the segment's base offset in 20 digits, and a suffix. The topic
id is in `partition.metadata` (Kafka's `PartitionMetadataFile`).
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
import uuid
from pathlib import Path
from typing import Final

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
PARTITION_METADATA_FILE: Final = "partition.metadata"
DELETED_DIRECTORY_SUFFIX: Final = "-delete"
_OFFSET_DIGITS: Final = 20
_MAX_NAME_LENGTH: Final = 255


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
