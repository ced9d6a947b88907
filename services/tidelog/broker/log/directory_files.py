"""The small files of a data directory and of its partitions: how they are read, and replaced durably.

The file `segments-checkpoint` of a partition shows whether a segment is missing that the broker did not
remove (ADR 0034). Kafka ignores it. A segment that it does not name is sound, and a name without a segment is
a loss. So the order is:

- A new segment's files are created, then its name is written, then records are appended.
- A name is removed durably (fsync), then its files are removed, renamed or replaced.

A crash of the machine can lose the files of new segments although their names are on disk, but only at or
above the recovery point. A list that cannot be written is removed: without it, nothing is checked.

Copies of settings restore them if the metadata is lost (ADR 0068). The copy of a topic's overrides is in the
directory of each of its partitions. The copy of the settings that AlterConfigs has set for brokers, which
topics inherit, is beside the partitions. Kafka ignores both files. A copy is a JSON object with the version
1, the settings, and the CRC-32 of their JSON. A copy that is missing or damaged means that the settings are
not known. So a copy that cannot be replaced is removed.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from tidelog.log_format.directory import (
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    SEGMENTS_CHECKPOINT_FILE,
    CorruptFileError,
    MetaProperties,
    decode_base_offsets,
    decode_offsets,
    decode_topic_id,
    encode_base_offsets,
    encode_offsets,
    encode_topic_id,
    file_name,
    offsets_of,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.settings.broker_settings import BROKER_SETTINGS
from tidelog.settings.other_kafka_settings import DYNAMIC_WITHOUT_EFFECT
from tidelog.settings.setting import UpdateMode

MISSING_SEGMENTS_NAMED: Final = 3
"""The number of missing segments that a message names."""
TOPIC_SETTINGS_FILE: Final = "topic-settings.json"
BROKER_SETTINGS_FILE: Final = "broker-settings.json"
_COPY_VERSION: Final = 1

_log = structlog.get_logger(__name__)


class LogStorageError(KafkaError):
    """The disk is full, read-only or failing, so the operation was not carried out.

    Clients receive KAFKA_STORAGE_ERROR and retry. Only `str` of the error, for this broker's own log, has the
    reason, because it contains paths.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR, "The broker cannot use its disk. Its log has the reason."
        )
        self._reason = reason

    def __str__(self) -> str:
        return self._reason


class PartitionDirectory:
    """The path of a partition's directory; it changes when the partition is deleted.

    `lock` protects the few file operations that two threads may start at the same time.
    """

    __slots__ = ("lock", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Lock()

    def file(self, base_offset: int, suffix: str) -> str:
        return f"{self.path}/{file_name(base_offset, suffix)}"

    def named(self, name: str) -> Path:
        return Path(self.path, name)

    def offsets_of(self, suffix: str) -> list[int]:
        """Returns the base offsets of the files with this suffix, sorted."""
        return offsets_of(os.listdir(self.path), suffix)

    def sync(self) -> None:
        """Makes the names of new, renamed and deleted files durable (fsync of the directory)."""
        sync_directory(self.path)


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


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """Returns the topic id, None if the file does not exist or is empty.

    The file is empty if the machine failed soon after the file was created. Raises CorruptFileError, OSError.
    """
    path = directory / PARTITION_METADATA_FILE
    try:
        return decode_topic_id(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Writes the file; the first flush of the log makes it durable. Raises OSError."""
    write_atomically(directory / PARTITION_METADATA_FILE, encode_topic_id(topic_id), syncs=False)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Returns no offsets if the file does not exist. Raises CorruptFileError, OSError."""
    try:
        return decode_offsets(path.read_bytes(), path)
    except FileNotFoundError:
        return {}


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    write_atomically(path, encode_offsets(offsets))


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """Returns None if the file does not exist. Raises CorruptFileError, OSError."""
    path = directory / META_PROPERTIES_FILE
    try:
        return MetaProperties.decode(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def write_meta_properties(directory: Path, meta: MetaProperties) -> None:
    """Raises OSError."""
    write_atomically(directory / META_PROPERTIES_FILE, meta.encode())


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
        named.append(f"{file_name(base_offset, LOG_SUFFIX)} {offsets}")
    if len(missing) > MISSING_SEGMENTS_NAMED:
        named.append(f"{len(missing) - MISSING_SEGMENTS_NAMED} more")
    return ", ".join(named)


def describe_missing(missing: Sequence[int], found: Collection[int], directory: PartitionDirectory) -> str:
    """Returns a message that names the missing offsets and the next step. `missing` is sorted."""
    return (
        f"segments are missing that the broker did not remove: {missing_names(missing, found)}. "
        f"Restore the files, or remove {directory.named(SEGMENTS_CHECKPOINT_FILE)} to serve what is left"
    )


class BrokerSettingsCopy(NamedTuple):
    """The settings that AlterConfigs has set for all brokers, and those for this broker."""

    of_all: Mapping[str, str]
    of_this: Mapping[str, str]


def keep_topic_settings(directory: Path, overrides: Mapping[str, str]) -> None:
    """Writes the copy of a topic's overrides, unless it is current. The next flush of the log syncs it."""
    _keep(directory / TOPIC_SETTINGS_FILE, overrides, syncs=False)


def read_topic_settings(directory: Path) -> Mapping[str, str] | None:
    """Returns a topic's overrides, None if they are not known. Raises OSError, CorruptFileError."""
    settings = _read(directory / TOPIC_SETTINGS_FILE)
    return None if settings is None else _texts(settings)


def keep_broker_settings(log_dir: Path, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> None:
    """Writes the copy of the settings that hold for all brokers or could, unless it is current.

    Settings of listeners, among them all passwords, belong to one broker and are left out.
    """
    settings = {"of_all": _cluster_wide(of_all), "of_this": _cluster_wide(of_this)}
    _keep(log_dir / BROKER_SETTINGS_FILE, settings, syncs=True)


def read_broker_settings(log_dir: Path) -> BrokerSettingsCopy | None:
    """Returns the broker's dynamic settings, None if they are not known. Raises OSError, CorruptFileError."""
    settings = _read(log_dir / BROKER_SETTINGS_FILE)
    if settings is None:
        return None
    return BrokerSettingsCopy(_texts(settings.get("of_all")), _texts(settings.get("of_this")))


def _cluster_wide(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in settings.items()
        if (definition := BROKER_SETTINGS.get(name) or DYNAMIC_WITHOUT_EFFECT.get(name)) is not None
        and definition.update_mode is UpdateMode.CLUSTER_WIDE
    }


def _keep(path: Path, settings: Mapping[str, object], *, syncs: bool) -> None:
    content = _encode(settings)
    with suppress(OSError):
        if path.read_bytes() == content:
            return
    try:
        write_atomically(path, content, syncs=syncs)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        _log.warning(
            "the copy of settings cannot be written: they are lost if the metadata is",
            path=str(path),
            reason=str(error),
        )


def _encode(settings: Mapping[str, object]) -> bytes:
    value = {"version": _COPY_VERSION, "settings": settings, "crc": _crc(settings)}
    return json.dumps(value, sort_keys=True).encode()


def _read(path: Path) -> Mapping[str, object] | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        value = json.loads(content)
        settings = value["settings"]
        if (
            value["version"] == _COPY_VERSION
            and isinstance(settings, dict)
            and value["crc"] == _crc(settings)
        ):
            return settings
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptFileError(f"{path} is damaged: it is not a copy of settings of version {_COPY_VERSION}")


def _crc(settings: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(settings, sort_keys=True).encode())


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
