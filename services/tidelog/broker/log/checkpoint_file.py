"""Kafka's offset checkpoints.

A checkpoint has the version `0` in its first line, the number of entries in the second, and then a line
`topic partition offset` for each entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.partition_directory import write_atomically
from tidelog.model.topics import TopicPartition

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
_VERSION: Final = 0


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(path: Path, content: bytes) -> dict[TopicPartition, int]:
    """Raises CorruptFileError, whose message names the line."""
    lines = content.decode("utf-8", errors="replace").splitlines()
    if not lines:
        return {}
    offsets: dict[TopicPartition, int] = {}
    try:
        version, count = int(lines[0]), int(lines[1])
        for line in lines[2:]:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = int(offset)
    except (ValueError, IndexError) as error:
        raise CorruptFileError(
            f"{path}, line {len(offsets) + 3}: expected `topic partition offset`"
        ) from error
    if version != _VERSION:
        raise CorruptFileError(f"{path}: unknown version {version}, expected {_VERSION}")
    if count != len(offsets):
        raise CorruptFileError(
            f"{path}: the header announces {count} entries, but the file has {len(offsets)}"
        )
    return offsets


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Returns no offsets if the file does not exist. Raises CorruptFileError, OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    return decode_offsets(path, content)


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    write_atomically(path, encode_offsets(offsets))
