"""Reads the metadata log of Apache Kafka (KRaft): topics, partitions and settings.

The directory `__cluster_metadata-0` has segments like those of any partition, and snapshots whose names
state the offset that they reach and its epoch. The value of a record is a frame version, the kind and the
version of the record (unsigned varints), and its fields. Source: Kafka's `MetadataRecordSerde`, `Snapshots`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from tidelog.broker.log.directory_files import PartitionDirectory
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.log_format.directory import LOG_SUFFIX, CorruptFileError
from tidelog.records.record import iterate_records
from tidelog.wire.codec import decoder
from tidelog.wire.malformed import MalformedMessageError, UnsupportedVersionError
from tidelog.wire.messages.records import kraft_metadata as kraft
from tidelog.wire.primitives import read_uvarint
from tidelog.wire.schema import Message

METADATA_LOG: Final = "__cluster_metadata-0"
DEFAULT_FOR_ALL: Final = ""
"""The name of the broker under which the settings of all brokers are stored."""
TOPIC_CONFIGS: Final = 2
BROKER_CONFIGS: Final = 4
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_FRAME_VERSION: Final = 1
_BEGIN_TRANSACTION, _END_TRANSACTION, _ABORT_TRANSACTION = 23, 24, 25
_DELEGATION_TOKEN, _REMOVE_DELEGATION_TOKEN = 10, 26
_NO_LEADER_CHANGE: Final = kraft.PartitionChangeRecord().leader


@dataclass(slots=True)
class KafkaPartition:
    """A partition as Kafka's controller knew it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int


@dataclass(slots=True)
class KafkaTopic:
    """A topic as Kafka's controller knew it."""

    name: str
    topic_id: UUID
    partitions: dict[int, KafkaPartition] = field(default_factory=dict)


class KafkaMetadata:
    """The state that the records of a metadata log describe, as far as `tidelog adopt` needs it."""

    def __init__(self) -> None:
        self.topics: dict[UUID, KafkaTopic] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        """The settings of each resource, by its type in Kafka's `ConfigResource` and its name."""
        self.acls: set[UUID] = set()
        self.scram_credentials: set[tuple[str, int]] = set()
        self.quotas: set[tuple[tuple[tuple[str, str | None], ...], str]] = set()
        self.features: dict[str, int] = {}
        self.delegation_tokens = 0
        self.next_producer_id = 0
        self._transaction: list[bytes] | None = None
        self._replays: Mapping[int, tuple[type[Message], Callable[[object], None]]] = {
            2: (kraft.TopicRecord, self._topic),
            3: (kraft.PartitionRecord, self._partition),
            4: (kraft.ConfigRecord, self._config),
            5: (kraft.PartitionChangeRecord, self._partition_change),
            9: (kraft.RemoveTopicRecord, self._remove_topic),
            11: (kraft.UserScramCredentialRecord, self._scram),
            12: (kraft.FeatureLevelRecord, self._feature),
            14: (kraft.ClientQuotaRecord, self._quota),
            15: (kraft.ProducerIdsRecord, self._producer_ids),
            18: (kraft.AccessControlEntryRecord, self._acl),
            19: (kraft.RemoveAccessControlEntryRecord, self._remove_acl),
            22: (kraft.RemoveUserScramCredentialRecord, self._remove_scram),
        }

    @property
    def topics_by_name(self) -> dict[str, KafkaTopic]:
        return {topic.name: topic for topic in self.topics.values()}

    def configs_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        return self.configs.get((resource_type, name), {})

    def replay(self, value: bytes) -> None:
        """Applies one record. The records of a transaction of the controller count when it ends. Raises
        MalformedMessageError, UnsupportedVersionError.
        """
        kind, version, position = _header(value)
        if kind == _BEGIN_TRANSACTION:
            self._transaction = []
        elif kind == _ABORT_TRANSACTION:
            self._transaction = None
        elif kind == _END_TRANSACTION:
            records, self._transaction = self._transaction or [], None
            for record in records:
                self.replay(record)
        elif self._transaction is not None:
            self._transaction.append(value)
        elif kind in (_DELEGATION_TOKEN, _REMOVE_DELEGATION_TOKEN):
            self.delegation_tokens += 1 if kind == _DELEGATION_TOKEN else -1
        elif kind in self._replays:
            message, apply = self._replays[kind]
            apply(decoder(message, version)(value, position)[0])

    # -- one kind of record each

    def _topic(self, record: object) -> None:
        assert isinstance(record, kraft.TopicRecord)
        self.topics[record.topic_id] = KafkaTopic(record.name, record.topic_id)

    def _partition(self, record: object) -> None:
        assert isinstance(record, kraft.PartitionRecord)
        if (topic := self.topics.get(record.topic_id)) is not None:
            topic.partitions[record.partition_id] = KafkaPartition(
                tuple(record.replicas), tuple(record.isr), record.leader_epoch
            )

    def _partition_change(self, record: object) -> None:
        assert isinstance(record, kraft.PartitionChangeRecord)
        topic = self.topics.get(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None:
            return
        if record.isr is not None:
            partition.isr = tuple(record.isr)
        if record.replicas is not None:
            partition.replicas = tuple(record.replicas)
        if record.leader != _NO_LEADER_CHANGE:
            partition.leader_epoch += 1

    def _remove_topic(self, record: object) -> None:
        assert isinstance(record, kraft.RemoveTopicRecord)
        topic = self.topics.pop(record.topic_id, None)
        if topic is not None:
            self.configs.pop((TOPIC_CONFIGS, topic.name), None)

    def _config(self, record: object) -> None:
        assert isinstance(record, kraft.ConfigRecord)
        configs = self.configs.setdefault((record.resource_type, record.resource_name), {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _feature(self, record: object) -> None:
        assert isinstance(record, kraft.FeatureLevelRecord)
        self.features[record.name] = record.feature_level

    def _quota(self, record: object) -> None:
        assert isinstance(record, kraft.ClientQuotaRecord)
        entity = tuple((part.entity_type, part.entity_name) for part in record.entity)
        if record.remove:
            self.quotas.discard((entity, record.key))
        else:
            self.quotas.add((entity, record.key))

    def _producer_ids(self, record: object) -> None:
        assert isinstance(record, kraft.ProducerIdsRecord)
        self.next_producer_id = record.next_producer_id

    def _scram(self, record: object) -> None:
        assert isinstance(record, kraft.UserScramCredentialRecord)
        self.scram_credentials.add((record.name, record.mechanism))

    def _remove_scram(self, record: object) -> None:
        assert isinstance(record, kraft.RemoveUserScramCredentialRecord)
        self.scram_credentials.discard((record.name, record.mechanism))

    def _acl(self, record: object) -> None:
        assert isinstance(record, kraft.AccessControlEntryRecord)
        self.acls.add(record.id)

    def _remove_acl(self, record: object) -> None:
        assert isinstance(record, kraft.RemoveAccessControlEntryRecord)
        self.acls.discard(record.id)


def read_metadata_log(directory: Path) -> KafkaMetadata:
    """Reads the newest snapshot and the log behind it. Changes no file.

    Raises OSError, and CorruptFileError if the log has a hole, is damaged before its end, or was written by
    an Apache Kafka whose records are newer than those that this version knows.
    """
    metadata = KafkaMetadata()
    start_offset = 0
    snapshots = sorted(path for path in directory.iterdir() if _SNAPSHOT.fullmatch(path.name))
    if snapshots:
        start_offset = int(snapshots[-1].name[:20])
        for _, value in _records(snapshots[-1], is_last=False):
            _replay(metadata, value, snapshots[-1])
    place = PartitionDirectory(str(directory))
    bases = place.offsets_of(LOG_SUFFIX)
    if bases and bases[0] > start_offset:
        raise CorruptFileError(
            f"{directory}: the records from {start_offset} to {bases[0] - 1} are missing; restore the newest "
            "*.checkpoint file or the segments"
        )
    for number, base_offset in enumerate(bases):
        path = Path(place.file(base_offset, LOG_SUFFIX))
        for offset, value in _records(path, is_last=number + 1 == len(bases)):
            if offset >= start_offset:
                _replay(metadata, value, path)
    return metadata


def _header(value: bytes) -> tuple[int, int, int]:
    """Returns the kind and the version of a record, and where its fields begin."""
    frame, position = read_uvarint(value, 0)
    if frame != _FRAME_VERSION:
        raise UnsupportedVersionError("the frame of a metadata record", frame)
    kind, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    return kind, version, position


def _replay(metadata: KafkaMetadata, value: bytes, path: Path) -> None:
    try:
        metadata.replay(value)
    except (MalformedMessageError, UnsupportedVersionError, IndexError) as error:
        raise CorruptFileError(f"{path}: a metadata record cannot be read: {error}") from error


def _records(path: Path, *, is_last: bool) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and the value of each record, except KRaft's own control records. The last segment
    may end in an unfinished batch, because its writer may have died.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            for _, header, batch in scan_headers(partial(os.pread, file.fileno()), 0, size, checks_crc=True):
                if header.is_control:
                    continue
                for record in iterate_records(batch):
                    if record.value is not None:
                        yield record.offset, record.value
        except TornLogError as error:
            if not (is_last and error.is_cut_off):
                raise CorruptFileError(f"{path}: {error}") from error
        except ValueError as error:
            raise CorruptFileError(f"{path}: {error}") from error
