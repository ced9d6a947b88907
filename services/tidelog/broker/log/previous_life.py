"""The lock of a data directory, and the facts that a broker leaves in it about its last life, its last run.

A start uses them to decide whether logs need recovery and whether the ends of logs may be lost. The
properties of a `Life` are in `meta.properties`. The clean-shutdown marker is the file `.kafka_cleanshutdown`:
a broker writes it after it has flushed and closed all its logs. It is JSON in the format of Kafka's
`CleanShutdownFileHandler` and has the broker epoch of that run. Only one process at a time, including Apache
Kafka, can lock the file `.lock`.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.broker.log.directory_files import write_atomically
from tidelog.log_format.directory import CLEAN_SHUTDOWN_FILE, MetaProperties
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import TopicPartition

LOCK_FILE: Final = ".lock"
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_MARKER_VERSION: Final = 0
_LEASE: Final = "tidelog.lease.id"
_BROKER_EPOCH: Final = "tidelog.broker.epoch"
_BOOT_ID: Final = "tidelog.boot.id"
_SEGMENTS_CHECKPOINT_EPOCH: Final = "tidelog.segments.checkpoint.epoch"
# topic:partition, separated by commas; topic names contain neither character
_LOST_TAILS: Final = "tidelog.lost.tails"
NO_LEASE: Final = 0
UNKNOWN_BOOT: Final = ""
_NEVER: Final = -2


class Life(NamedTuple):
    """One run of a broker.

    `lease` is the id of its lease in the metadata store. `boot_id` identifies the boot of the machine; it is
    empty if the system does not provide one. `lost_tails` has the replicas that had lost records when the run
    began, and on which no controller has acted yet.
    """

    lease: int = NO_LEASE
    broker_epoch: int = UNKNOWN_EPOCH
    boot_id: str = ""
    lost_tails: tuple[TopicPartition, ...] = ()


def life_of(meta: MetaProperties) -> Life:
    """Reads the properties. Missing or invalid values are replaced by the defaults of `Life`."""
    others = meta.others
    return Life(
        _number(others.get(_LEASE), NO_LEASE),
        _number(others.get(_BROKER_EPOCH), UNKNOWN_EPOCH),
        others.get(_BOOT_ID, ""),
        _partitions(others.get(_LOST_TAILS, "")),
    )


def with_life(meta: MetaProperties, life: Life) -> MetaProperties:
    others = dict(meta.others)
    others |= {_LEASE: str(life.lease), _BROKER_EPOCH: str(life.broker_epoch), _BOOT_ID: life.boot_id}
    others[_SEGMENTS_CHECKPOINT_EPOCH] = str(life.broker_epoch)
    others.pop(_LOST_TAILS, None)
    if life.lost_tails:
        others[_LOST_TAILS] = ",".join(f"{topic}:{partition}" for topic, partition in life.lost_tails)
    return MetaProperties(meta.cluster_id, meta.node_id, meta.directory_id, others)


def was_used_by_tidelog(meta: MetaProperties) -> bool:
    """Returns whether a broker of tidelog has used the directory, perhaps after Apache Kafka."""
    return _BROKER_EPOCH in meta.others


def is_log_suspect(previous: Life, marker_epoch: int | None, boot_id: str) -> bool:
    """Returns whether the ends of logs may be lost, because the machine failed while the broker was running.

    `marker_epoch` is the broker epoch in the clean-shutdown marker, None without a marker. A marker of
    another run than the last one proves nothing: the directory may have been restored from a copy. If only
    the process died, the page cache still had all records.
    """
    if marker_epoch is not None and marker_epoch == previous.broker_epoch != UNKNOWN_EPOCH:
        return False
    return not boot_id or boot_id != previous.boot_id


def listed_segments_epoch(meta: MetaProperties) -> int:
    """Returns the broker epoch of the last run that kept the lists of segments, as it knew it at its end."""
    return _number(meta.others.get(_SEGMENTS_CHECKPOINT_EPOCH), _NEVER)


def with_listed_segments(meta: MetaProperties, epoch: int) -> MetaProperties:
    """Returns the properties of a run that kept the lists and writes this epoch into its marker."""
    others = dict(meta.others) | {_SEGMENTS_CHECKPOINT_EPOCH: str(epoch)}
    return MetaProperties(meta.cluster_id, meta.node_id, meta.directory_id, others)


def has_listed_segments(meta: MetaProperties, marker_epoch: int | None) -> bool:
    """Returns whether the last run kept the lists of segments (`segments-checkpoint`).

    Apache Kafka and tidelog before these lists keep the property, but they stop or register with another
    broker epoch. A run of Kafka that did not stop cleanly cannot be recognized.
    """
    expected = life_of(meta).broker_epoch if marker_epoch is None else marker_epoch
    return listed_segments_epoch(meta) == expected


def read_boot_id() -> str:
    """Returns an empty string if the system does not provide a boot id."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def take_clean_shutdown_marker(directory: Path) -> int | None:
    """Removes the marker, because logs can change from now on, and returns its broker epoch.

    Returns -1 if the marker has no broker epoch, and None if there is no marker or if it cannot be parsed.
    Raises OSError.
    """
    path = directory / CLEAN_SHUTDOWN_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    if not content:
        return UNKNOWN_EPOCH  # Kafka wrote an empty file before version 3.7
    try:
        marker = json.loads(content)
    except ValueError:
        return None
    epoch = marker.get("brokerEpoch", UNKNOWN_EPOCH) if isinstance(marker, dict) else None
    return epoch if isinstance(epoch, int) else None


def write_clean_shutdown_marker(directory: Path, broker_epoch: int) -> None:
    """Writes the marker; everything must have been flushed before. Raises OSError."""
    marker = {"version": _MARKER_VERSION, "brokerEpoch": broker_epoch}
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, json.dumps(marker, separators=(",", ":")).encode())


def _partitions(text: str) -> tuple[TopicPartition, ...]:
    pairs = (entry.rpartition(":") for entry in text.split(",") if entry)
    return tuple(TopicPartition(topic, int(number)) for topic, _, number in pairs if number.isdecimal())


def _number(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise


class LogDirectoryInUseError(RuntimeError):
    """Another process has locked the data directory."""


class DirectoryLock:
    """A lock that is held from its construction until `release` or until the process ends.

    It has two parts: the POSIX lock excludes Java processes, and the BSD lock excludes a second holder in
    this process.
    """

    def __init__(self, directory: Path) -> None:
        """Raises LogDirectoryInUseError, OSError."""
        self._fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError | PermissionError):
                raise LogDirectoryInUseError(
                    f"The data directory {directory} is in use by another process ({LOCK_FILE} is locked)"
                ) from error
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
