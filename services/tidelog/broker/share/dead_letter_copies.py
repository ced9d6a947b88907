"""Copies the records that share groups give up to the groups' dead letter topics (KIP-1191).

The core of a share partition names the records once their state ARCHIVING is stored. One task for each share
partition copies them in batches, and then tells the core, which archives them. Until then the records are in
flight, so they count towards the limit of their share partition, and other records are still delivered. A
copy that fails is repeated for as long as this broker leads; Kafka gives up after five attempts. A copy whose
outcome is unknown, or whose broker died, is repeated, too, so a record may be in the topic more than once.

`CopyTurns` decides whose copy may keep batches in memory next. A write to a dead letter topic that does not
answer keeps its batches until its timeout. So topics whose last write succeeded have turns of their own, and
each other topic has one of the remaining turns at a time. Topics that hang, however many, hold up the
answering ones at most once, until their first timeouts.

`DeadLetterTakeover` continues copies after a change of leaders, also where no member fetches. A new leader
reads the state of a share partition when a member fetches it. But a group whose records wait for their copy
may have no members any more. So a leader asks for the states of its partitions once in each leader epoch, for
the groups that have a dead letter topic. Where records wait, it begins to use the share partition, which
copies them and is then forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

import structlog

from tidelog.broker.coordination.share_state import RETRIABLE, ShareStateClient
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.share.dead_letter_records import LetterBatch, Origin, batches_of, read_letters
from tidelog.broker.share.dead_letter_writer import DeadLetterTopics, DeadLetterWriter
from tidelog.broker.share.deliveries import DeadLetters
from tidelog.broker.share.partition_core import SharePartitionCore
from tidelog.broker.share.record_ranges import DeliveryState
from tidelog.broker.share.share_partition import SharePartition
from tidelog.kernel.clock import Clock
from tidelog.kernel.instants import Backoff
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import UNKNOWN_EPOCH
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.rpc.broker_commands import TopicState
from tidelog.wire.messages.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadStateData,
)

MAX_RECORDS: Final = 500
"""The most records of one copy. The core archives so many single ones in about 20 ms."""
MAX_COPY_BYTES: Final = 1024 * 1024
"""The size of the records of one copy, which the last one may exceed, and of a batch."""
MAX_READS: Final = 4
"""The most copies of this broker that read and build batches at a time."""
BACKOFF: Final = Backoff(100, 10_000)
"""The pauses between two attempts to copy the same records."""
MAX_COUNTED_GROUPS: Final = 1_000
"""The most groups whose dead letters are counted. A further group replaces the one that was counted first."""
OF_THE_BATCH: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD}
)
"""The errors that other batches for the same topic need not get."""
MAX_STATE_READS: Final = 100
"""The most states that are read at a time. Each has at most 10,000 batches."""
MAX_COPIES: Final = 48
"""The most copies to answering topics that keep batches in memory, about 1 MiB each."""
MAX_COPIES_OF_OTHERS: Final = 16
"""The most copies to topics that are not known to answer, each to another topic."""
MAX_COPIES_OF_TOPIC: Final = 4
"""The most copies to one answering topic. It is one copy while half of the turns or more are taken, so that
a few topics that begin to hang leave room for many.
"""
MAX_ANSWERING_TOPICS: Final = 1_000
"""The most topics that are known to answer. A further topic replaces the one that was added first."""

_log = structlog.get_logger(__name__)


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
        topics: DeadLetterTopics,
        writer: DeadLetterWriter,
        clock: Clock,
        record_walks: Executor,
        spawn: Callable[[Coroutine[object, None, None]], None],
    ) -> None:
        self._topics = topics
        self._writer = writer
        self._clock = clock
        self._record_walks = record_walks
        self._spawn = spawn
        self._running: set[SharePartition] = set()
        self._reads = asyncio.Semaphore(MAX_READS)
        self._turns = CopyTurns()
        self._counts: dict[str, DeadLetterLoad] = {}

    def begin(self, partition: SharePartition) -> None:
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

    async def _copy_all(self, partition: SharePartition) -> None:
        """Copies until nothing is left, or until the share partition is over."""
        failures, last_reason = 0, ""
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
                    failures = 0
                    continue
                failures += 1
                await asyncio.sleep(BACKOFF.delay_ms(failures) / 1000)
                refused.clear()
        except Exception as error:  # noqa: BLE001 - a bug: the next write of the partition begins a new copy
            _log.error("the copy of dead letters failed", group=partition.group_id, exc_info=error)
            self._count(partition.group_id, failures=1)
        finally:
            self._running.discard(partition)

    async def _copy(
        self,
        partition: SharePartition,
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
        self, partition: SharePartition, wanted: list[DeadLetters], topic: TopicState
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
        partition: SharePartition,
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


def _why_not_copied(partition: SharePartition) -> str | None:
    """Returns why the records of a share partition have no dead letters, None if they have."""
    topic = partition.settings.errors_deadletterqueue_topic_name
    if not topic:
        return "the group has no dead letter topic any more"
    if topic == partition.replica.topic_partition.topic:  # each copy would come back to the group
        return "they are in the dead letter topic of the group already"
    return None


async def _archive_all(partition: SharePartition, core: SharePartitionCore, reason: str) -> None:
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


def _log_failure(partition: SharePartition, error: KafkaError | ConnectionError) -> None:
    _log.warning(
        "records cannot be copied to the dead letter topic now; they are tried again",
        group=partition.group_id,
        partition=str(partition.replica.topic_partition),
        topic=partition.settings.errors_deadletterqueue_topic_name,
        error=error.code.name if isinstance(error, KafkaError) else type(error).__name__,
        reason=str(error),
    )


class _Known(NamedTuple):
    """The groups whose states of a partition were read in a leader epoch."""

    leader_epoch: int
    groups: frozenset[str]


class _Unread(NamedTuple):
    key: SharePartitionKey
    replica: Replica
    leader_epoch: int


class DeadLetterTakeover:
    """The states that this broker has read as a leader. `use` begins to use a share partition without a
    member, unless it is in use.
    """

    def __init__(self, state: ShareStateClient, use: Callable[[SharePartitionKey, Replica], object]) -> None:
        self._state = state
        self._use = use
        self._known: dict[TopicPartition, _Known] = {}
        self._groups: frozenset[str] = frozenset()
        """The groups of the last scan, so that the partitions share one set."""

    async def scan(self, groups: frozenset[str], replicas: Iterable[Replica]) -> None:
        """Reads the states of the groups that were not read in the current leader epochs. A state that
        cannot be read now is read by a later scan.
        """
        if groups != self._groups:
            self._groups = groups
        unread = self._unread(list(replicas))
        while wanted := list(islice(unread, MAX_STATE_READS)):
            by_group: defaultdict[str, list[_Unread]] = defaultdict(list)
            for found in wanted:
                by_group[found.key.group_id].append(found)
            for group, states in by_group.items():
                await self._read(group, states)

    def _unread(self, replicas: list[Replica]) -> Iterator[_Unread]:
        led = {replica.topic_partition: replica for replica in replicas if replica.core.is_leader}
        self._known = {at: known for at, known in self._known.items() if at in led}
        for at, replica in led.items():
            groups, epoch, known = self._groups, replica.core.leader_epoch, self._known.get(at)
            if known is None or known.leader_epoch != epoch:
                known = self._known[at] = _Known(epoch, frozenset())
            if known.groups is groups:
                continue
            for group in sorted(groups - known.groups):
                yield _Unread(SharePartitionKey(group, replica.topic_id, at.partition), replica, epoch)
            if groups <= known.groups:  # a group has no dead letter topic any more
                self._known[at] = _Known(epoch, groups)

    async def _read(self, group: str, states: list[_Unread]) -> None:
        partitions: defaultdict[UUID, list[PartitionData]] = defaultdict(list)
        for found in states:
            partitions[found.key.topic_id].append(PartitionData(found.key.partition, UNKNOWN_EPOCH))
        topics = [ReadStateData(topic_id, wanted) for topic_id, wanted in partitions.items()]
        response = await self._state.read(ReadShareGroupStateRequest(group, topics))
        results = {
            (topic.topic_id, result.partition): result
            for topic in response.results
            for result in topic.partitions
        }
        for key, replica, leader_epoch in states:
            result = results.get((key.topic_id, key.partition))
            known = self._known.get(replica.topic_partition)
            if result is None or result.error_code in RETRIABLE:
                continue
            if known is None or known.leader_epoch != leader_epoch:
                continue
            if _waits(result):
                self._use(key, replica)
            groups = known.groups | {group}
            self._known[replica.topic_partition] = _Known(
                leader_epoch, self._groups if groups == self._groups else groups
            )


def _waits(result: PartitionResult) -> bool:
    """Returns whether records wait for their copy. A result with an error has no records."""
    return any(batch.delivery_state == DeliveryState.ARCHIVING for batch in result.state_batches)


class CopyTurns:
    """The turns of all copies of a broker. Topics that wait get them one after the other."""

    def __init__(self) -> None:
        self._answering: dict[str, None] = {}
        self._held: Counter[str] = Counter()
        """The turns by topic, of topics that answered when they got the turn."""
        self._held_by_others: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[Counter[str]]]] = {}
        """The copies that wait, by topic. A topic that got a turn is the last one again."""

    @asynccontextmanager
    async def turn(self, topic: str) -> AsyncIterator[None]:
        """Waits for the turn of a copy to a topic, and ends the turn after the block."""
        held = self._take(topic)
        if held is None:
            got: asyncio.Future[Counter[str]] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(topic, deque()).append(got)
            try:
                held = await got
            except asyncio.CancelledError:
                if got.done() and not got.cancelled():  # it was given a turn and cancelled at once
                    self._end(topic, got.result())
                raise
        try:
            yield
        finally:
            self._end(topic, held)

    def answered(self, topic: str) -> None:
        """Counts a topic among the answering ones, because a write to it succeeded."""
        if topic in self._answering:
            return
        if len(self._answering) >= MAX_ANSWERING_TOPICS:
            del self._answering[next(iter(self._answering))]
        self._answering[topic] = None
        self._admit()

    def failed(self, topic: str) -> None:
        """Counts a topic among the others, because a write to it failed."""
        self._answering.pop(topic, None)

    def _take(self, topic: str) -> Counter[str] | None:
        """Takes a turn for a topic, if it may have one. Returns the count that the turn belongs to."""
        if topic in self._answering:
            held, all_held = self._held, self._held.total()
            share = MAX_COPIES_OF_TOPIC if 2 * all_held < MAX_COPIES else 1
            is_free = all_held < MAX_COPIES and held[topic] < share
        else:
            held = self._held_by_others
            is_free = held.total() < MAX_COPIES_OF_OTHERS and held[topic] == 0
        if not is_free:
            return None
        held[topic] += 1
        return held

    def _end(self, topic: str, held: Counter[str]) -> None:
        held[topic] -= 1
        if not held[topic]:
            del held[topic]
        self._admit()

    def _admit(self) -> None:
        """Gives turns to the topics that wait and may have one."""
        for topic in tuple(self._waiting):
            waiting = self._waiting[topic]
            while waiting and waiting[0].done():  # cancelled
                waiting.popleft()
            if waiting and (held := self._take(topic)) is not None:
                waiting.popleft().set_result(held)
                del self._waiting[topic]
                self._waiting[topic] = waiting
            if not waiting:
                del self._waiting[topic]
