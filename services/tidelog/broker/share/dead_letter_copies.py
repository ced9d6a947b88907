"""Copies the records that share groups give up to the groups' dead letter topics (KIP-1191).

The core of a share partition names the records once their state ARCHIVING is stored. One task for each share
partition copies them in batches, and then tells the core, which archives them. Until then the records are in
flight, so they count towards the limit of their share partition, and other records are still delivered. A
copy that fails is repeated for as long as this broker leads; Kafka gives up after five attempts. A copy whose
outcome is unknown, or whose broker died, is repeated, too, so a record may be in the topic more than once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share.dead_letter_reader import read_letters
from tidelog.broker.share.dead_letter_records import LetterBatch, Origin, batches_of
from tidelog.broker.share.dead_letter_turns import CopyTurns
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.broker_commands import TopicState
from tidelog.settings.group_settings import GroupSettings
from tidelog.timing.clock import Clock

MAX_RECORDS: Final = 500
"""The most records of one copy. The core archives so many single ones in about 20 ms."""
MAX_COPY_BYTES: Final = 1024 * 1024
"""The size of the records of one copy, which the last one may exceed, and of a batch."""
MAX_READS: Final = 4
"""The most copies of this broker that read and build batches at a time."""
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 10_000
"""The pauses between two attempts to copy the same records double up to this limit."""
MAX_COUNTED_GROUPS: Final = 1_000
"""The most groups whose dead letters are counted. A further group replaces the one that was counted first."""
OF_THE_BATCH: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD}
)
"""The errors that other batches for the same topic need not get."""

_log = structlog.get_logger(__name__)


class CopiedPartition(Protocol):
    """The share partition whose records are copied (`SharePartition`)."""

    replica: Replica

    @property
    def group_id(self) -> str: ...

    @property
    def core(self) -> SharePartitionCore | None:
        """The core, None unless the partition is active."""
        ...

    def continues(self) -> bool:
        """Returns whether this broker still leads the partition in the same epoch. Ends it otherwise."""
        ...

    @property
    def settings(self) -> GroupSettings: ...

    @property
    def isolation_level(self) -> int: ...

    def dead_letters_changed(self) -> None:
        """Writes what the core has to write after records were archived."""
        ...


class FindTopic(Protocol):
    """The dead letter topics (`dead_letter_topics.py`)."""

    async def find(self, name: str) -> TopicState:
        """Raises KafkaError and ConnectionError."""
        ...

    def max_message_bytes(self, topic: TopicState) -> int: ...


class WriteBatch(Protocol):
    """Writes batches (`dead_letter_writer.py`)."""

    async def write(self, topic: str, partition: int, batch: bytearray) -> None:
        """Raises KafkaError."""
        ...

    async def close(self) -> None: ...


class DeadLetterLoad(NamedTuple):
    """The dead letters of one group from this broker: copied ones, attempts that failed, and those that wait
    for their copy.
    """

    copied: int = 0
    failures: int = 0
    waiting: int = 0


class _Copied(NamedTuple):
    """The outcome of one copy: the number of records that were archived, and the error that it met."""

    archived: int
    failure: KafkaError | ConnectionError | None = None


class DeadLetterCopies:
    """The copies of this broker. `spawn` runs a coroutine in the background."""

    def __init__(
        self,
        topics: FindTopic,
        writer: WriteBatch,
        clock: Clock,
        record_walks: Executor,
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._topics = topics
        self._writer = writer
        self._clock = clock
        self._record_walks = record_walks
        self._spawn = spawn
        self._running: set[CopiedPartition] = set()
        self._reads = asyncio.Semaphore(MAX_READS)
        self._turns = CopyTurns()
        self._counts: dict[str, DeadLetterLoad] = {}

    def begin(self, partition: CopiedPartition) -> None:
        """Copies the dead letters of a share partition, unless that is under way."""
        core = partition.core
        if partition in self._running or core is None or next(core.dead_letters(), None) is None:
            return
        self._running.add(partition)
        self._spawn(self._copy_all(partition))

    async def close(self) -> None:
        """Ends the connections to other brokers."""
        await self._writer.close()

    def loads(self) -> dict[str, DeadLetterLoad]:
        """Returns the dead letters by group. Any thread may call it."""
        loads = self._counts.copy()
        for partition in tuple(self._running):
            core, group = partition.core, partition.group_id
            if core is not None:
                load = loads.get(group, DeadLetterLoad())
                loads[group] = load._replace(waiting=load.waiting + core.archiving_count)
        return loads

    # -- one share partition

    async def _copy_all(self, partition: CopiedPartition) -> None:
        """Copies until nothing is left, or until the share partition is over."""
        pause_ms, last_reason = FIRST_PAUSE_MS, ""
        refused: set[int] = set()
        """The first offsets of batches that the topic refuses. They are tried again after a pause."""
        try:
            while partition.continues() and (core := partition.core) is not None:
                reason = _why_not_copied(partition)
                if reason is not None:
                    await _archive_all(partition, core, reason)
                    return
                wanted = list(_first(_without(core.dead_letters(), refused), MAX_RECORDS))
                if not wanted and not refused:
                    return
                archived, failure = 0, None
                if wanted:
                    try:
                        archived, failure = await self._copy(partition, core, wanted, refused)
                    except (KafkaError, ConnectionError) as error:
                        failure = error
                if failure is not None:
                    self._count(partition.group_id, failures=1)
                    if str(failure) != last_reason:
                        last_reason = str(failure)
                        _log_failure(partition, failure)
                if archived:
                    pause_ms = FIRST_PAUSE_MS
                    continue
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)
                refused.clear()
        except Exception as error:  # noqa: BLE001 - a bug: the next write of the partition begins a new copy
            _log.error("the copy of dead letters failed", group=partition.group_id, exc_info=error)
            self._count(partition.group_id, failures=1)
        finally:
            self._running.discard(partition)

    async def _copy(
        self,
        partition: CopiedPartition,
        core: SharePartitionCore,
        wanted: list[DeadLetters],
        refused: set[int],
    ) -> _Copied:
        """Copies the first of the wanted records. If the topic refuses batches, adds their first offsets to
        `refused`. Raises KafkaError and ConnectionError if it copies nothing.
        """
        name = partition.settings.errors_deadletterqueue_topic_name
        topic = await self._topics.find(name)
        async with self._turns.turn(name):
            async with self._reads:
                end_offset, batches = await self._read(partition, wanted, topic)
            return await self._write(partition, core, wanted, refused, topic, end_offset, batches)

    async def _read(
        self, partition: CopiedPartition, wanted: list[DeadLetters], topic: TopicState
    ) -> tuple[int, list[LetterBatch]]:
        """Returns the batches to write, and the end offset of what was read. Raises KafkaError."""
        source = partition.replica.topic_partition
        read = await read_letters(
            partition.replica,
            wanted,
            MAX_COPY_BYTES,
            partition.isolation_level,
            self._record_walks,
            copies=partition.settings.errors_deadletterqueue_copy_record_enable,
        )
        origin = Origin(partition.group_id, source.topic, source.partition)
        most_bytes = min(MAX_COPY_BYTES, self._topics.max_message_bytes(topic))
        made = batches_of(read.letters, origin, self._clock.wall_ms(), most_bytes)
        # It is work of some ten milliseconds.
        batches = await asyncio.get_running_loop().run_in_executor(self._record_walks, list, made)
        return read.end_offset, batches

    async def _write(
        self,
        partition: CopiedPartition,
        core: SharePartitionCore,
        wanted: list[DeadLetters],
        refused: set[int],
        topic: TopicState,
        end_offset: int,
        batches: list[LetterBatch],
    ) -> _Copied:
        """Writes batches one after the other, and archives the records of each."""
        to = partition.replica.topic_partition.partition % len(topic.partitions)
        archived, failure = 0, None
        for batch in batches:
            try:
                await self._writer.write(topic.name, to, batch.batch)
            except KafkaError as error:
                failure = error
                if error.code not in OF_THE_BATCH:
                    self._turns.failed(topic.name)
                    return _Copied(archived, failure)
                refused.update(batch.offsets)
                continue
            self._turns.answered(topic.name)
            if partition.core is not core:
                return _Copied(archived, failure)
            self._count(partition.group_id, copied=len(batch.offsets))
            archived += _archive(core, batch)
            partition.dead_letters_changed()
        if partition.core is core:
            archived += _archive_gaps(core, wanted, end_offset, refused)
            partition.dead_letters_changed()
        return _Copied(archived, failure)

    def _count(self, group: str, *, copied: int = 0, failures: int = 0) -> None:
        counts = self._counts
        known = counts.get(group)
        if known is None:
            known = DeadLetterLoad()
            if len(counts) >= MAX_COUNTED_GROUPS:
                del counts[next(iter(counts))]
        counts[group] = DeadLetterLoad(known.copied + copied, known.failures + failures)


def _why_not_copied(partition: CopiedPartition) -> str | None:
    """Returns why the records of a share partition have no dead letters, None if they have."""
    topic = partition.settings.errors_deadletterqueue_topic_name
    if not topic:
        return "the group has no dead letter topic any more"
    if topic == partition.replica.topic_partition.topic:  # each copy would come back to the group
        return "they are in the dead letter topic of the group already"
    return None


async def _archive_all(partition: CopiedPartition, core: SharePartitionCore, reason: str) -> None:
    _log.warning(
        "records are archived without a copy",
        group=partition.group_id,
        partition=str(partition.replica.topic_partition),
        records=core.archiving_count,
        reason=reason,
    )
    while partition.core is core and (wanted := list(_first(core.dead_letters(), MAX_RECORDS))):
        for found in wanted:
            core.dead_letters_copied(found.first, found.last)
        partition.dead_letters_changed()
        await asyncio.sleep(0)


def _without(found: Iterator[DeadLetters], refused: set[int]) -> Iterator[DeadLetters]:
    """Yields the records without the refused offsets."""
    for letters in found:
        if not refused:
            yield letters
            continue
        first = letters.first
        for offset in sorted(at for at in refused if letters.first <= at <= letters.last):
            if first < offset:
                yield letters._replace(first=first, last=offset - 1)
            first = offset + 1
        if first <= letters.last:
            yield letters._replace(first=first)


def _first(found: Iterator[DeadLetters], most: int) -> Iterator[DeadLetters]:
    """Yields the first `most` records."""
    for letters in found:
        last = min(letters.last, letters.first + most - 1)
        most -= last - letters.first + 1
        yield letters._replace(last=last)
        if not most:
            return


def _archive(core: SharePartitionCore, batch: LetterBatch) -> int:
    """Archives the records of a batch, adjacent ones together. Returns how many."""
    archived = 0
    first = last = batch.offsets[0]
    for offset in batch.offsets[1:]:
        if offset != last + 1:
            archived += core.dead_letters_copied(first, last)
            first = offset
        last = offset
    return archived + core.dead_letters_copied(first, last)


def _archive_gaps(
    core: SharePartitionCore, wanted: list[DeadLetters], end_offset: int, refused: set[int]
) -> int:
    """Archives the wanted offsets without a record: those below `end_offset` that are not copied or refused.
    Returns how many.
    """
    below = (
        letters._replace(last=min(letters.last, end_offset - 1))
        for letters in wanted
        if letters.first < end_offset
    )
    return sum(core.dead_letters_copied(letters.first, letters.last) for letters in _without(below, refused))


def _log_failure(partition: CopiedPartition, error: KafkaError | ConnectionError) -> None:
    _log.warning(
        "records cannot be copied to the dead letter topic now; they are tried again",
        group=partition.group_id,
        partition=str(partition.replica.topic_partition),
        topic=partition.settings.errors_deadletterqueue_topic_name,
        error=error.code.name if isinstance(error, KafkaError) else type(error).__name__,
        reason=str(error),
    )
