"""The names of the files in a data directory, and the contents of its small text files.

As in Kafka, a file of a segment is named by the segment's base offset in 20 digits, and a suffix. A
checkpoint has the version `0` in its first line, the number of entries in the second, and then a line for
each entry. The line of an offset is `topic partition offset`, that of a segment is its base offset.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.model.topics import TopicPartition, parse_topic_id, topic_id_text

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)

DELETED_SUFFIX: Final = ".deleted"
"""The suffix of a file that is no longer in the log and will be removed."""
CLEANED_SUFFIX: Final = ".cleaned"
"""The suffix of a file that a compaction is writing."""
SWAP_SUFFIX: Final = ".swap"
"""The suffix of a complete file that will replace those of older segments."""
STRANDED_SUFFIX: Final = ".stranded"
"""The suffix of records that recovery took out of a log."""
LEFTOVER_SUFFIXES: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
"""The suffixes of the files that a start removes."""

LEADER_EPOCHS_FILE: Final = "leader-epoch-checkpoint"
SEGMENTS_CHECKPOINT_FILE: Final = "segments-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
META_PROPERTIES_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"

DELETED_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"
NOT_OF_BROKERS: Final = frozenset({"__cluster_metadata"})
"""Topics that are not the broker's: Apache Kafka's controllers keep their own log beside the partitions."""

_OFFSET_DIGITS: Final = 20
_MAX_NAME_LENGTH: Final = 255
_CHECKPOINT_VERSION: Final = 0
_PROPERTIES_VERSION: Final = 1
_ESCAPED: Final = re.compile(r"\\(.)")
_TO_ESCAPE: Final = re.compile(r"([\\:=#!])")


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """Returns the base offsets of the files with this suffix, sorted."""
    return sorted(
        int(stem)
        for name in names
        if name.endswith(suffix)
        and len(stem := name.removesuffix(suffix)) == _OFFSET_DIGITS
        and stem.isdecimal()
    )


def is_orphan(name: str, names: Container[str]) -> bool:
    """Returns whether the file is of a segment whose `.log` file is not among `names`."""
    stem, dot, suffix = name.rpartition(".")
    return dot + suffix in SEGMENT_SUFFIXES and stem.isdecimal() and stem + LOG_SUFFIX not in names


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


class CorruptFileError(ValueError):
    """A file of a data directory cannot be parsed; the message gives the reason."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _encode(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def decode_offsets(content: bytes, path: object) -> dict[TopicPartition, int]:
    """Raises CorruptFileError, whose message names the path and the line."""
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
    if version != _CHECKPOINT_VERSION:
        raise CorruptFileError(f"{path}: unknown version {version}, expected {_CHECKPOINT_VERSION}")
    if count != len(offsets):
        raise CorruptFileError(
            f"{path}: the header announces {count} entries, but the file has {len(offsets)}"
        )
    return offsets


def encode_base_offsets(base_offsets: Collection[int]) -> bytes:
    return _encode(map(str, sorted(base_offsets)))


def _encode(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in (_CHECKPOINT_VERSION, len(lines), *lines)).encode()


def decode_base_offsets(content: bytes) -> list[int]:
    """Raises ValueError if the list is not complete."""
    version, *numbers = content.decode("ascii").split("\n")
    if (
        version != str(_CHECKPOINT_VERSION)
        or len(numbers) < 2
        or numbers[-1]
        or int(numbers[0]) != len(numbers) - 2
    ):
        raise ValueError("expected version 0, the number of segments, and a line for each")
    return [int(number) for number in numbers[1:-1]]


def encode_topic_id(topic_id: uuid.UUID) -> bytes:
    """Returns the contents of `partition.metadata` (Kafka's `PartitionMetadataFile`)."""
    return f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n".encode("ascii")


def decode_topic_id(content: bytes, path: object) -> uuid.UUID | None:
    """Returns the id in `partition.metadata`, None if the file is empty.

    The file is empty if the machine failed soon after the file was created. Raises CorruptFileError.
    """
    lines = content.decode("ascii", errors="replace").splitlines()
    if not lines:
        return None
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        if fields.get("version") == "0":
            return parse_topic_id(fields.get("topic_id", ""))
    except ValueError:
        pass
    raise CorruptFileError(f"{path}: expected `version: 0` and `topic_id: ...`")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The contents of `meta.properties`: the cluster and the node that a data directory belongs to.

    The format is Kafka's (KRaft, version 1). `others` has the properties that are written back unchanged.
    """

    cluster_id: str
    node_id: int
    directory_id: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        properties = {
            "version": str(_PROPERTIES_VERSION),
            "cluster.id": self.cluster_id,
            "node.id": str(self.node_id),
        }
        if self.directory_id is not None:
            properties["directory.id"] = self.directory_id
        properties.update(self.others)
        lines = [f"{name}={_TO_ESCAPE.sub(_with_backslash, value)}\n" for name, value in properties.items()]
        return "".join(lines).encode("latin-1")

    @classmethod
    def decode(cls, content: bytes, path: object) -> MetaProperties:
        """Raises CorruptFileError.

        It reads version 1, and version 0 of ZooKeeper mode, which has `broker.id` instead of `node.id`.
        """
        properties: dict[str, str] = {}
        for line in content.decode("latin-1").splitlines():
            stripped = line.strip()
            if stripped and stripped[0] not in "#!":
                name, _, value = stripped.partition("=")
                properties[name.strip()] = _ESCAPED.sub(r"\1", value.strip())
        version = properties.pop("version", "0")
        if version not in ("0", "1"):
            raise CorruptFileError(f"{path}: unknown version {version}")
        node_id = properties.pop("node.id", properties.pop("broker.id", ""))
        cluster_id = properties.pop("cluster.id", "")
        if not node_id.isdecimal() or not cluster_id:
            raise CorruptFileError(f"{path}: node.id or cluster.id is missing or invalid")
        return cls(cluster_id, int(node_id), properties.pop("directory.id", None), properties)


def _with_backslash(match: re.Match[str]) -> str:
    return f"\\{match[1]}"
