"""Finds out what data directories contain, without changing or recovering anything, and decides which
settings topics and brokers get that are in directories but not in the metadata.

The settings come from the copies in the directories (`broker/log/directory_files.py`). Copies that differ
were written at different times, and nobody knows which is the newest: a broker may have been down when a
setting changed. What is not known deletes nothing (ADR 0067, ADR 0068).
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from tidelog.broker.coordination.internal_topics import internal_topic
from tidelog.broker.log.directory_files import (
    BrokerSettingsCopy,
    PartitionDirectory,
    read_broker_settings,
    read_topic_id,
    read_topic_settings,
)
from tidelog.log_format.batches import TornLogError, scan_headers
from tidelog.log_format.directory import (
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    NOT_OF_BROKERS,
    SNAPSHOT_SUFFIX,
    CorruptFileError,
    parse_partition_directory_name,
)
from tidelog.log_format.entries import decode_snapshot
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.metadata.entries import BrokerConfigEntry
from tidelog.model.errors import KafkaError
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import INTERNAL_TOPICS, NOT_CONFIRMED, TopicPartition
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.topic_settings import validate_overrides

_log = structlog.get_logger(__name__)


class LogEnd(NamedTuple):
    """The end of a replica's log. A greater value is further ahead. The epoch is that of the last batch."""

    leader_epoch: int
    log_end_offset: int


class FoundReplica(NamedTuple):
    """A replica on disk. `topic_id` is None if the machine crashed before the id was written, and `settings`
    is None if the topic's overrides are not known.
    """

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    end: LogEnd
    latest_epoch: int  # the greatest known leader epoch, even if it has no batch
    settings: Mapping[str, str] | None = None


def partition_directories(log_dir: Path) -> dict[TopicPartition, Path]:
    """Returns the directories of all partitions, except those that are set aside or being deleted."""
    found: dict[TopicPartition, Path] = {}
    if not log_dir.is_dir():
        return found
    for entry in log_dir.iterdir():
        partition = parse_partition_directory_name(entry.name)
        if partition is None or partition.topic in NOT_OF_BROKERS or not entry.is_dir():
            continue
        if any(
            entry.glob(f"*{LOG_SUFFIX}")
        ):  # otherwise the name only looks like a partition's: "backup-20240101"
            found[partition] = entry
    return found


def survey(topic_partition: TopicPartition, directory: Path) -> FoundReplica:
    """Returns the replica in a partition's directory. Raises OSError, CorruptFileError."""
    end = log_end(directory)
    try:
        latest_epoch = latest_leader_epoch(directory)
    except CorruptFileError as error:
        _log.warning("leader epochs are taken from the log", reason=str(error))
        latest_epoch = UNKNOWN_EPOCH
    latest_epoch = max(end.leader_epoch, latest_epoch)
    return FoundReplica(
        topic_partition, read_topic_id(directory), end, latest_epoch, topic_settings_of(directory)
    )


def topic_settings_of(directory: Path) -> Mapping[str, str] | None:
    """Returns the overrides of a partition's topic, None if they are not known. Raises OSError."""
    try:
        overrides = read_topic_settings(directory)
        if overrides is not None:
            validate_overrides(overrides)
    except (CorruptFileError, KafkaError) as error:
        _log.warning("settings of a topic are not known", directory=str(directory), reason=str(error))
        return None
    return overrides


def broker_settings_of(log_dir: Path) -> BrokerSettingsCopy | None:
    """Returns the settings that AlterConfigs had set for the broker, None if they are not known. Raises
    OSError.
    """
    try:
        return read_broker_settings(log_dir)
    except CorruptFileError as error:
        _log.warning("settings of a broker are not known", reason=str(error))
        return None


def log_end(directory: Path) -> LogEnd:
    """Returns the end of the log that recovery would leave: after the last valid batch. Raises OSError."""
    place = PartitionDirectory(os.fspath(directory))
    bases = place.offsets_of(LOG_SUFFIX)
    offset, leader_epoch = (bases[-1] if bases else 0), UNKNOWN_EPOCH
    for base_offset in reversed(bases):  # the last segment may still be empty
        with Path(place.file(base_offset, LOG_SUFFIX)).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                for _, header, _ in scan_headers(
                    partial(os.pread, file.fileno()), 0, size, min_offset=base_offset
                ):
                    leader_epoch, offset = header.partition_leader_epoch, header.last_offset + 1
            except TornLogError as error:
                _log.warning("the log ends in a torn batch", file=file.name, reason=str(error))
        if leader_epoch != UNKNOWN_EPOCH:
            return LogEnd(leader_epoch, offset)
    return LogEnd(UNKNOWN_EPOCH, offset)


def latest_leader_epoch(directory: Path) -> int:
    """Returns the newest epoch of the leader-epoch checkpoint; UNKNOWN_EPOCH if the file does not exist.

    Raises CorruptFileError, OSError.
    """
    path = directory / LEADER_EPOCHS_FILE
    try:
        return LeaderEpochs.decode(path.read_bytes()).latest_epoch
    except FileNotFoundError:
        return UNKNOWN_EPOCH
    except CorruptFileError as error:
        raise CorruptFileError(f"{path}: {error}") from error


def greatest_producer_id(directory: Path) -> int:
    """Returns the greatest producer id in the snapshots, or -1.

    Unreadable snapshots are skipped, because the broker rebuilds them when it opens the log.
    """
    greatest = -1
    for snapshot in directory.glob(f"*{SNAPSHOT_SUFFIX}"):
        try:
            entries = decode_snapshot(snapshot.read_bytes())
        except CorruptFileError as error:
            _log.warning("producer snapshot skipped", file=str(snapshot), reason=str(error))
            continue
        greatest = max(greatest, *(entry.producer_id for entry in entries), -1)
    return greatest


class FoundBrokerSettings(NamedTuple):
    """The dynamic settings of brokers. Unless they are all known, nobody knows what topics inherit."""

    entries: tuple[BrokerConfigEntry, ...]
    are_known: bool


def found_broker_settings(copies: Mapping[int, BrokerSettingsCopy | None]) -> FoundBrokerSettings:
    """Returns the settings of the brokers with these ids."""
    known = {broker_id: copy for broker_id, copy in copies.items() if copy is not None}
    of_all = [copy.of_all for copy in known.values()]
    configs = {DEFAULT_BROKER_ENTITY: _most_frequent(of_all)} if of_all else {}
    configs |= {str(broker_id): copy.of_this for broker_id, copy in known.items()}
    entries = tuple(BrokerConfigEntry(entity, settings) for entity, settings in configs.items() if settings)
    return FoundBrokerSettings(entries, len(known) == len(copies) and _are_equal(of_all))


def found_topic_settings(
    topic: str,
    copies: Collection[Mapping[str, str] | None],
    *,
    replicas: int,
    are_defaults_known: bool,
) -> Mapping[str, str]:
    """Returns the overrides of a topic with so many replicas, from the copies of its partitions.

    Internal topics whose settings are not known get those of their creation. Other topics delete nothing
    until their settings are confirmed.
    """
    known = [copy for copy in copies if copy is not None]
    is_internal = topic in INTERNAL_TOPICS
    if known and _are_equal(known) and (are_defaults_known or is_internal):
        return known[0]
    if is_internal:
        configs = internal_topic(topic, BrokerSettings(), replicas).configs
        return {config.name: config.value for config in configs if config.value is not None}
    return {**(_most_frequent(known) if known else {}), **NOT_CONFIRMED}


def _are_equal(copies: Collection[Mapping[str, str]]) -> bool:
    return len(set(map(_items, copies))) <= 1


def _most_frequent(copies: Collection[Mapping[str, str]]) -> Mapping[str, str]:
    counts = Counter(map(_items, copies))
    return dict(max(counts.items(), key=lambda item: (item[1], item[0]))[0])


def _items(copy: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(copy.items()))
