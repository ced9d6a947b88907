"""A machine's disk in memory, and a broker's log directory on it with the same methods as the real one.

Written data is visible to every later process of this boot (it is in the page cache). Flushed data also
survives a crash of the machine. A crash keeps an arbitrary prefix of the rest, because recovery truncates a
log at the first incomplete batch.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.log_config import LogConfig
from tidelog.broker.log.partition_log import OpenedLog
from tidelog.broker.log.previous_life import Life, is_log_suspect, life_of, with_life
from tidelog.broker.log.segment_indexes import aborted_transaction
from tidelog.broker.partition.events import LogRestarted, Truncated
from tidelog.broker.partition.producer_state import CompletedTransaction, ProducerState
from tidelog.log_format.directory import MetaProperties
from tidelog.log_format.leader_epochs import LeaderEpochs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.aborted import AbortedTransaction
from tidelog.records.batch import BatchHeader, iterate_headers
from tidelog.records.record import end_transaction_marker

PARTIAL_APPEND_SHARE: Final = 8
"""One in this many appends of fetched batches accepts only the first batch."""


class StoredFile:
    """A small file that is replaced as a whole."""

    def __init__(self) -> None:
        self.content: Any = None
        self.flushed: Any = None

    def write(self, content: Any, *, flush: bool) -> None:
        self.content = content
        if flush:
            self.flushed = content

    def crash(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.content = self.flushed
        else:
            self.flushed = self.content


class StoredPartition:
    """The directory of one partition."""

    def __init__(self, topic_id: uuid.UUID, disk: SimDisk) -> None:
        self.topic_id = topic_id
        self.disk = disk
        self.start_offset = 0
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.flushed_count = 0
        self.epochs = StoredFile()

    @property
    def end_offset(self) -> int:
        return self.batches[-1][0].last_offset + 1 if self.batches else self.start_offset

    @property
    def flushed_end_offset(self) -> int:
        count = self.flushed_count
        return self.batches[count - 1][0].last_offset + 1 if count else self.start_offset

    def cut(self, count: int) -> None:
        del self.batches[count:]
        self.flushed_count = min(self.flushed_count, count)

    def cut_at(self, offset: int) -> None:
        """Removes every batch that has a record at or above `offset`."""
        count = len(self.batches)
        while count and self.batches[count - 1][0].last_offset >= offset:
            count -= 1
        self.cut(count)

    def crash(self, chance: random.Random) -> None:
        self.cut(chance.randint(self.flushed_count, len(self.batches)))
        self.flushed_count = len(self.batches)
        self.epochs.crash(chance)


class SimDisk:
    """`boot` changes when the machine restarts."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.boot = 0
        self.chance = chance or random.Random(0)
        self.refusal_share = 0.0
        """The probability that a write fails."""
        self.partitions: dict[TopicPartition, StoredPartition] = {}
        self.high_watermarks = StoredFile()
        self.log_starts = StoredFile()
        self.clean_epoch = StoredFile()
        self.meta = StoredFile()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def crash(self, chance: random.Random) -> None:
        """Simulates a power failure, which loses unflushed data in part or completely."""
        self.boot += 1
        for partition in self.partitions.values():
            partition.crash(chance)
        for file in (self.high_watermarks, self.log_starts, self.clean_epoch):
            file.crash(chance)

    def lose_everything(self) -> None:
        """Replaces the disk by a new, empty one."""
        boot = self.boot + 1
        self.__init__(self.chance)  # type: ignore[misc]
        self.boot = boot

    def write(self, what: str) -> None:
        """Writes to the disk. Raises LogStorageError if the disk refuses."""
        if self.refusal_share and self.chance.random() < self.refusal_share:
            raise LogStorageError(f"simulated disk: {what} failed")

    def flip_a_bit(self, chance: random.Random) -> None:
        """Flips a bit in an unflushed batch of a partition. Recovery checks such batches and truncates the
        log there.
        """
        for partition in self.partitions.values():
            unflushed = len(partition.batches) - partition.flushed_count
            if unflushed > 0:
                partition.cut(partition.flushed_count + chance.randrange(unflushed))


class SimFileRange:
    """`tidelog.broker.log.segment.FileRange` with the content of this moment."""

    def __init__(self, content: bytes, next_offset: int) -> None:
        self._content = content
        self.next_offset = next_offset
        self.length = len(content)
        self.position = 0

    @classmethod
    def part(cls, segment: SimFileRange, position: int, length: int, next_offset: int) -> SimFileRange:
        """Replaces the constructor of `FileRange`. The segment is a range that was read."""
        return cls(segment.read()[position : position + length], next_offset)

    @property
    def segment(self) -> SimFileRange:
        return self

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> Any:
        """Returns this range, which `scan_range` takes where the broker takes a file descriptor."""
        return self

    def read(self) -> bytes:
        return self._content

    def release(self) -> None:
        """Does nothing, because no file is open."""


def scan_range(
    read_at: partial[bytes], position: int, end: int
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Replaces `scan_headers`. `read_at` reads from a SimFileRange, which is its own file number."""
    (content,) = read_at.args
    data = content.read()[position:end]
    for at, header in iterate_headers(data):
        yield position + at, header, memoryview(data)[at:]


class SimPartitionLog:
    """`PartitionLog` over a StoredPartition. `on_change(log)` is called after each append and truncation."""

    def __init__(
        self,
        stored: StoredPartition,
        config: LogConfig,
        now_ms: int,
        *,
        log_start_offset: int = 0,
    ) -> None:
        self.log = self  # a PartitionLog contains the log; here one object stands for both
        self.stored = stored
        self.config = config
        if stored.end_offset < log_start_offset:  # a crash lost the end after DeleteRecords
            stored.cut(0)
            stored.start_offset = log_start_offset
        self.log_start_offset = max(stored.start_offset, log_start_offset)
        self.log_end_offset = stored.end_offset
        self.last_flush_ms = now_ms
        self.has_deleted_files = False
        self.cut_at_opening: str | None = None
        self.aborted: list[AbortedTransaction] = []
        self.directory = SimpleNamespace(path="simulated", directory_id=None)
        self.segments = ()  # no file, so no segment whose times retention has to read
        self.leader_epoch_checkpoint = b""
        self.recovery_point = min(stored.flushed_end_offset, self.log_end_offset)
        self.on_change: Callable[[SimPartitionLog], None] = lambda log: None
        self.topic_settings: Mapping[str, str] | None = None

    def keep_topic_settings(self, overrides: Mapping[str, str]) -> None:
        self.topic_settings = overrides

    def recovered(self, now_ms: int) -> OpenedLog:
        """The log with the state that its files show, as from `PartitionLog.open`.

        The epochs that batches carry are known even if the checkpoint was lost.
        """
        text = self.stored.epochs.content
        epochs = LeaderEpochs() if text is None else LeaderEpochs.decode(text)
        for header, _ in self.stored.batches:
            epochs.note_batch(header.partition_leader_epoch, header.base_offset)
        epochs.truncate_from_end(self.log_end_offset)
        epochs.truncate_from_start(self.log_start_offset)
        self.leader_epoch_checkpoint = epochs.encode()
        self.persist_leader_epochs()
        as_real: Any = self
        return OpenedLog(as_real, self._rebuilt_producers(now_ms), epochs)

    def _rebuilt_producers(self, now_ms: int) -> ProducerState:
        """The producers that the batches show. Rebuilds the transaction index, too."""
        producers = ProducerState()
        self.aborted.clear()
        for header, data in self.stored.batches:
            marker = end_transaction_marker(data) if header.is_control else None
            completed = producers.update(header, now_ms, marker)
            if completed is not None and completed.is_aborted:
                self.index_aborted(completed)
        return producers

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for _, data in self.stored.batches)

    # -- append

    def append(self, batch: Any, header: BatchHeader, now_ms: int) -> bool:
        assert header.base_offset == self.log_end_offset, (header.base_offset, self.log_end_offset)
        self.stored.disk.write("append")
        self.stored.batches.append((header, bytes(batch)))
        self.log_end_offset = header.last_offset + 1
        self.on_change(self)
        return True

    def append_received(self, records: Any, headers: Sequence[BatchHeader], now_ms: int) -> int:
        self.stored.disk.write("append")
        if headers[0].crc % PARTIAL_APPEND_SHARE == 0:
            headers = headers[:1]  # as at the end of a segment
        position = 0
        for header in headers:
            assert header.base_offset >= self.log_end_offset, (header.base_offset, self.log_end_offset)
            self.stored.batches.append((header, bytes(records[position : position + header.size_bytes])))
            position += header.size_bytes
            self.log_end_offset = header.last_offset + 1
        self.on_change(self)
        return len(headers)

    def index_aborted(self, transaction: CompletedTransaction) -> None:
        self.aborted.append(aborted_transaction(transaction))

    # -- read

    def aborted_transactions(self, from_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        return [
            transaction
            for transaction in self.aborted
            if transaction.last_offset >= from_offset and transaction.first_offset < upper_offset
        ]

    def first_aborted(
        self, from_offset: int, upper_offset: int, most: int
    ) -> tuple[list[AbortedTransaction], int]:
        found = self.aborted_transactions(from_offset, upper_offset)
        assert len(found) <= most, "simulations have few transactions"
        return found, upper_offset

    def read(
        self, fetch_offset: int, max_bytes: int, upper_offset: int, *, at_least_one_batch: bool = True
    ) -> SimFileRange | None:
        if not self.log_start_offset <= fetch_offset <= self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"simulated log: {fetch_offset}")
        chosen: list[bytes] = []
        size, next_offset = 0, fetch_offset
        batches = self.stored.batches
        for header, data in batches[index_of(batches, fetch_offset) :]:
            if header.last_offset >= upper_offset:
                break
            if size + len(data) > max_bytes and (chosen or not at_least_one_batch):
                break
            chosen.append(data)
            size += len(data)
            next_offset = header.last_offset + 1
        return SimFileRange(b"".join(chosen), next_offset) if chosen else None

    def remember_place(self, offset: int, segment: SimFileRange, position: int) -> None:
        """Does nothing, because a search is cheap here."""

    # -- removal

    def increment_log_start_offset(self, offset: int) -> bool:
        if offset > self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"simulated log: {offset}")
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        return True

    def delete_old_segments(
        self, now_ms: int, high_watermark: int, producer_snapshot: Callable[[], bytes]
    ) -> int:
        """Deletes the batches below the log start and returns their number. A batch counts as a segment."""
        batches = self.stored.batches
        count = index_of(batches, self.log_start_offset)
        if count:
            self.stored.start_offset = batches[count - 1][0].last_offset + 1
            del batches[:count]
            self.stored.flushed_count = max(0, self.stored.flushed_count - count)
        return count

    def remove_deleted_files(self, now_ms: int) -> int:
        return 0

    def truncate_to(self, offset: int, leader_epochs: LeaderEpochs, now_ms: int) -> Truncated | LogRestarted:
        self.stored.disk.write("truncation")
        if offset < self.log_end_offset and offset <= self.stored.start_offset:
            return self.restart_at(offset, now_ms)
        self.stored.cut_at(offset)
        self.log_start_offset = min(self.log_start_offset, self.stored.end_offset)
        self.log_end_offset = self.stored.end_offset
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        leader_epochs.truncate_from_end(self.log_end_offset)
        self.leader_epoch_checkpoint = leader_epochs.encode()
        self.persist_leader_epochs()
        producers = self._rebuilt_producers(now_ms)
        self.on_change(self)
        return Truncated(self.log_start_offset, self.log_end_offset, producers)

    def restart_at(self, offset: int, now_ms: int) -> LogRestarted:
        self.stored.disk.write("restart")
        self.stored.cut(0)
        self.stored.start_offset = offset
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self.aborted.clear()
        self.leader_epoch_checkpoint = LeaderEpochs().encode()
        self.persist_leader_epochs()
        self.on_change(self)
        return LogRestarted(offset)

    # -- durability

    def is_flush_due(self, now_ms: int) -> bool:
        is_over = now_ms - self.last_flush_ms >= self.config.flush_ms
        return is_over and self.recovery_point < self.log_end_offset

    def flush(self, up_to_offset: int | None = None, *, now_ms: int | None = None) -> None:
        self.stored.disk.write("flush")
        self.stored.flushed_count = len(self.stored.batches)
        self.stored.epochs.write(self.leader_epoch_checkpoint, flush=True)
        self.recovery_point = self.log_end_offset
        if now_ms is not None:
            self.last_flush_ms = now_ms

    def persist_leader_epochs(self, *, syncs: bool = False) -> None:
        self.stored.disk.write("leader epochs")
        self.stored.epochs.write(self.leader_epoch_checkpoint, flush=syncs)

    def close(self, producer_snapshot: bytes | None = None) -> None:
        self.flush()


def index_of(batches: list[tuple[BatchHeader, bytes]], offset: int) -> int:
    """Returns the index of the first batch that ends at or after `offset`."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        if batches[middle][0].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


class SimLogDirectory:
    """`LogDirectory` on a SimDisk."""

    def __init__(
        self, disk: SimDisk, node_id: int, on_change: Callable[[TopicPartition, SimPartitionLog], None]
    ) -> None:
        self.disk = disk
        self.partitions: dict[TopicPartition, SimPartitionLog] = {}
        clean_epoch = disk.clean_epoch.content
        self.was_clean = clean_epoch is not None
        self.previous_broker_epoch = -1 if clean_epoch is None else clean_epoch
        self.meta = disk.meta.content or MetaProperties("simulated", node_id)
        self.is_suspect = is_log_suspect(life_of(self.meta), clean_epoch, disk.boot_id)
        self.has_untold_damage = False
        self._log_starts: dict[TopicPartition, int] = dict(disk.log_starts.content or {})
        self.high_watermarks: dict[TopicPartition, int] = dict(disk.high_watermarks.content or {})
        self._on_change = on_change
        disk.clean_epoch.write(None, flush=True)

    def suspect_partitions(self) -> tuple[TopicPartition, ...]:
        """Returns the partitions that end below their checkpointed high watermark."""
        return tuple(
            topic_partition
            for topic_partition, stored in sorted(self.disk.partitions.items())
            if stored.end_offset < self.high_watermarks.get(topic_partition, 0)
        )

    def remember(self, life: Life) -> None:
        self.meta = with_life(self.meta, life)
        self.disk.meta.write(self.meta, flush=True)

    def topic_partitions_on_disk(self) -> list[TopicPartition]:
        return sorted(self.disk.partitions)

    def topic_id_on_disk(self, topic_partition: TopicPartition) -> uuid.UUID | None:
        stored = self.disk.partitions.get(topic_partition)
        return stored.topic_id if stored else None

    def open_partition(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: LogConfig,
        *,
        now_ms: int,
        topic_settings: Mapping[str, str] | None = None,
        **_: Any,
    ) -> OpenedLog:
        stored = self.disk.partitions.get(topic_partition)
        if stored is None or stored.topic_id != topic_id:
            stored = self.disk.partitions[topic_partition] = StoredPartition(topic_id, self.disk)
            self.high_watermarks.pop(topic_partition, None)
            self._log_starts.pop(topic_partition, None)
        log_start_offset = self._log_starts.get(topic_partition, 0)
        log = SimPartitionLog(stored, config, now_ms, log_start_offset=log_start_offset)
        log.topic_settings = topic_settings
        log.on_change = lambda changed: self._on_change(topic_partition, changed)
        self.partitions[topic_partition] = log
        return log.recovered(now_ms)

    def keep_broker_settings(self, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> None:
        """Keeps nothing, because no simulation recovers a lost store."""

    def close_partition(
        self, topic_partition: TopicPartition, producer_snapshot: bytes | None = None
    ) -> None:
        log = self.partitions.pop(topic_partition, None)
        if log is not None:
            log.close()
            self._log_starts[topic_partition] = log.log_start_offset

    def delete_partition(self, topic_partition: TopicPartition, now_ms: int, **_: Any) -> None:
        self.partitions.pop(topic_partition, None)
        self.disk.partitions.pop(topic_partition, None)
        self.high_watermarks.pop(topic_partition, None)
        self._log_starts.pop(topic_partition, None)

    def remove_deleted_partitions(self, now_ms: int) -> int:
        return 0

    def remove_strays(self, expected: Collection[TopicPartition], **_: Any) -> list[TopicPartition]:
        strays = [
            stray for stray in self.disk.partitions if stray not in expected and stray not in self.partitions
        ]
        for stray in strays:
            del self.disk.partitions[stray]
            self.high_watermarks.pop(stray, None)
        return strays

    def is_recovery_point_lowered(self, topic_partition: TopicPartition) -> bool:
        return False

    def checkpoint_recovery_points(self) -> None:
        """Does nothing more, because the flushed count of each partition is the recovery point."""

    def checkpoint_clean_offsets(self) -> None:
        """Does nothing, because nothing is compacted here."""

    def checkpoint_log_start_offsets(self) -> None:
        for topic_partition, log in self.partitions.items():
            self._log_starts[topic_partition] = log.log_start_offset
        self.disk.log_starts.write(dict(self._log_starts), flush=True)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        self.high_watermarks.update(high_watermarks)
        self.disk.write("high watermarks")
        self.disk.high_watermarks.write(dict(self.high_watermarks), flush=True)

    def close(self, *, broker_epoch: int = -1, **_: Any) -> None:
        for topic_partition in list(self.partitions):
            self.close_partition(topic_partition)
        self.checkpoint_log_start_offsets()
        self.checkpoint_high_watermarks({})
        if not self.has_untold_damage:
            self.disk.clean_epoch.write(broker_epoch, flush=True)

    def abandon(self) -> None:
        self.partitions.clear()
