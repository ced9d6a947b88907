"""The share partitions that this broker leads, by group and partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from itertools import repeat
from typing import Final, NamedTuple

import structlog

from tidelog.broker.coordination.share_state import ShareStateClient
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.log.directory_files import LogStorageError
from tidelog.broker.log.segmented_log import SegmentedLog
from tidelog.broker.requests.waiting import WaitingRequests
from tidelog.broker.share.dead_letter_copies import (
    DeadLetterCopies,
    DeadLetterTakeover,
)
from tidelog.broker.share.dead_letter_writer import DeadLetterTopics, DeadLetterWriter
from tidelog.broker.share.deliveries import AcknowledgementsOf, DeliveryCounts
from tidelog.broker.share.pauses import BreakerState
from tidelog.broker.share.share_partition import SharePartition, ShareParts
from tidelog.broker.share.share_sessions import SessionKey, ShareSession, ShareSessions
from tidelog.kernel.clock import Clock
from tidelog.kernel.slices import TaskSet, in_slices
from tidelog.kernel.steps import Steps
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import SharePartitionKey, TopicPartition
from tidelog.records.batch import NO_TIMESTAMP
from tidelog.settings.group_settings import GroupSettingsView

NO_COUNTS: Final = DeliveryCounts()
RANGES_OF_A_STEP: Final = 50
"""The number of ranges of a share partition whose release counts as one step of sliced work."""
MAX_LOOKUPS: Final = 1_000
"""The most batches that one scrape looks up, 0.1 s of its thread."""

_log = structlog.get_logger(__name__)


class ShareGroupLoad:
    """The deliveries of one group from this broker."""

    __slots__ = (
        "acquired",
        "counts",
        "full_partitions",
        "group",
        "oldest_age_ms",
        "paused_partitions",
        "unfinished",
        "waiting",
    )

    def __init__(self, group: str) -> None:
        self.group = group
        self.unfinished = 0
        """The records up to the high watermark that are not acknowledged or archived."""
        self.acquired = 0
        """The records that members have."""
        self.waiting = 0
        """The records in flight that may not be delivered yet: for their time or an earlier record of their
        key.
        """
        self.paused_partitions = 0
        """The share partitions that the circuit breaker pauses or probes."""
        self.full_partitions = 0
        """The share partitions of which no new record may be acquired until others end."""
        self.oldest_age_ms = 0
        """The age of the oldest unfinished record by the timestamp of its batch, 0 if there is none."""
        self.counts = DeliveryCounts()


class SharePartitions:
    """The share partitions of members with a session. Without members, and without anything to write, a share
    partition is forgotten: its state is at the share coordinator.
    """

    def __init__(
        self,
        hosted: HostedPartitions,
        waiting: WaitingRequests,
        state: ShareStateClient,
        settings: GroupSettingsView,
        clock: Clock,
        record_walks: Executor,
        max_sessions: Callable[[], int],
        dead_letter_topics: DeadLetterTopics,
        dead_letter_writer: DeadLetterWriter,
    ) -> None:
        self._hosted = hosted
        self._waiting = waiting
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._of_partition: dict[TopicPartition, dict[SharePartitionKey, None]] = {}
        """The share partitions of each partition of the log."""
        self._of_group: Counter[str] = Counter()
        """The number of share partitions of each group."""
        self._of_session: dict[SessionKey, set[SharePartitionKey]] = {}
        self._unreleased: dict[SessionKey, set[SharePartitionKey]] = {}
        """The share partitions of sessions that have ended whose records have not been returned yet."""
        self._is_releasing = False
        self._forgotten: dict[str, DeliveryCounts] = {}
        """The counts of share partitions that are forgotten, by group with others."""
        self._oldest = OldestRecords()
        self._tasks: TaskSet[None] = TaskSet()
        self.sessions = ShareSessions(max_sessions, end=lambda member: self.end_sessions([member]))
        self.dead_letters = DeadLetterCopies(
            dead_letter_topics, dead_letter_writer, clock, record_walks, self._spawn
        )
        self.dead_letter_takeover = DeadLetterTakeover(state, self._use)
        waiting.partition_shared = self._partition_changed
        self.parts = ShareParts(
            state,
            settings,
            clock,
            waiting.timer,
            record_walks,
            self._is_current,
            self._spawn,
            self._changed,
            self.dead_letters.begin,
        )

    def __len__(self) -> int:
        return len(self._partitions)

    def loads(self) -> list[ShareGroupLoad]:
        """Returns the loads of the groups with members. Reads the log; one thread may call it at a time, but
        not the event loop's.
        """
        loads: dict[str, ShareGroupLoad] = {}
        oldest: dict[SharePartitionKey, OldestOffset] = {}
        for key, partition in tuple(self._partitions.items()):
            core, group = partition.core, key.group_id
            if core is None:
                continue
            load = loads.get(group)
            if load is None:
                load = loads[group] = ShareGroupLoad(group)
                load.counts.add(self._forgotten.get(group, NO_COUNTS))
            leader = partition.replica.core
            beyond = max(leader.high_watermark - core.end_offset, 0)
            load.unfinished += core.ranges.unfinished_count + beyond
            load.acquired += core.acquired_count
            load.waiting += core.ranges.waiting_count
            load.paused_partitions += core.breaker.state is not BreakerState.CLOSED
            load.full_partitions += core.is_at_limit(partition.limits)
            load.counts.add(core.counts)
            offset = max(core.start_offset, leader.log_start_offset)
            if offset < leader.high_watermark:
                oldest[key] = OldestOffset(partition.replica.log, partition.leader_epoch, offset)
        now_ms = self.parts.clock.wall_ms()
        for key, timestamp in self._oldest.timestamps(oldest):
            load = loads[key.group_id]
            load.oldest_age_ms = max(load.oldest_age_ms, now_ms - timestamp)
        return list(loads.values())

    async def stop(self) -> None:
        """Ends what runs in the background, because the broker stops."""
        self._tasks.cancel()
        await self.dead_letters.close()

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """Returns a share partition that is in use and that this broker still leads in the same epoch."""
        found = self._partitions.get(key)
        if found is not None and not found.is_current:
            found.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return None
        if found is not None and found.is_outdated:
            found.end(KafkaError(ErrorCode.INVALID_RECORD_STATE, "the group's settings have changed"))
            return None
        return found

    def use(self, key: SharePartitionKey, replica: Replica, session: SessionKey) -> SharePartition:
        """Returns a share partition for a member with a session. Begins to read its state if it is new."""
        unreleased = self._unreleased.get(session)
        if unreleased is not None and key in unreleased:
            unreleased.remove(key)
            self._release(key, session.member_id)  # else the new session would lose its records later
        found = self._use(key, replica)
        if session.member_id not in found.members:
            found.members.add(session.member_id)
            self._of_session.setdefault(session, set()).add(key)
        return found

    def _use(self, key: SharePartitionKey, replica: Replica) -> SharePartition:
        # If `find` ends one, a fetch that waits for it may already have begun the next one.
        found = self.find(key) or self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = SharePartition(key, replica, self.parts, self._forget)
            self._of_partition.setdefault(replica.topic_partition, {})[key] = None
            self._of_group[key.group_id] += 1
            found.start()
        return found

    def end_sessions(self, members: Iterable[SessionKey]) -> None:
        """Ends the sessions that these members have. The records that they have not acknowledged come back,
        those of many share partitions in slices.
        """
        for member in members:
            self.sessions.close(member)
            used = self._of_session.pop(member, None)
            if used:
                self._unreleased.setdefault(member, set()).update(used)
        if self._unreleased and not self._is_releasing:
            rest = in_slices(self._release_all())
            if rest is not None:
                self._spawn(rest)

    def end_session(self, session: ShareSession) -> None:
        """Ends a session, unless it has ended."""
        if self.sessions.is_open(session):
            self.end_sessions([session.key])

    def connection_closed(self, connection: object) -> None:
        """Ends the sessions of a connection."""
        self.end_sessions([session.key for session in self.sessions.of_connection(connection)])

    def _release_all(self) -> Steps[None]:
        """Returns the records of all sessions that have ended, also of those that end meanwhile."""
        self._is_releasing = True
        try:
            while self._unreleased:
                member, unreleased = next(iter(self._unreleased.items()))
                if not unreleased:
                    del self._unreleased[member]
                    continue
                found = self._release(unreleased.pop(), member.member_id)
                if found is not None:
                    yield from repeat(None, found.range_count // RANGES_OF_A_STEP)
                    if found.is_idle:
                        found.end(
                            KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no member uses the share partition")
                        )
                yield
        finally:
            self._is_releasing = False

    def _release(self, key: SharePartitionKey, member_id: str) -> SharePartition | None:
        found = self.find(key)
        if found is not None:
            found.leave(member_id)
        return found

    def _forget(self, found: SharePartition) -> None:
        key = found.key
        if self._partitions.get(key) is not found:
            return
        del self._partitions[key]
        group, topic_partition = key.group_id, found.replica.topic_partition
        del self._of_partition[topic_partition][key]
        if not self._of_partition[topic_partition]:
            del self._of_partition[topic_partition]
        self._forgotten.setdefault(group, DeliveryCounts()).add(found.counts)
        self._of_group[group] -= 1
        if not self._of_group[group]:
            del self._of_group[group], self._forgotten[group]
        for member in found.members:
            keys = self._of_session.get(SessionKey(key.group_id, member))
            if keys is not None:
                keys.discard(key)

    def _is_current(self, replica: Replica, leader_epoch: int) -> bool:
        core = replica.core
        return (
            core.is_leader
            and core.leader_epoch == leader_epoch
            and self._hosted.replicas.get(replica.topic_partition) is replica
        )

    def _spawn(self, work: Coroutine[object, None, None]) -> None:
        self._tasks.start(work)

    def _partition_changed(self, topic_partition: TopicPartition) -> None:
        """Completes waiting requests, because records were appended or there may be another leader."""
        for key in tuple(self._of_partition.get(topic_partition, ())):
            self._changed(key)

    def _changed(self, key: SharePartitionKey) -> None:
        """Completes the requests that wait for a share partition: acknowledgements, then fetches."""
        self._waiting.fetch.changed(AcknowledgementsOf(key))
        partition = self._partitions.get(key)
        # If many fetches wait, the first ones acquire all available records, and the others go on waiting.
        may_others = None if partition is None else partition.may_end_fetches
        self._waiting.fetch.changed(key, may_others)


class OldestOffset(NamedTuple):
    """The first offset of a share partition that is not finished."""

    log: SegmentedLog
    leader_epoch: int
    offset: int


class _Batch(NamedTuple):
    """A batch that was looked up. `first_offset` is the offset for which it was looked up."""

    leader_epoch: int
    first_offset: int
    last_offset: int
    timestamp: int


class OldestRecords:
    """The batches that were looked up, the one that was looked up first in front."""

    def __init__(self) -> None:
        self._batches: dict[SharePartitionKey, _Batch] = {}

    def timestamps(
        self, oldest: Mapping[SharePartitionKey, OldestOffset]
    ) -> Iterator[tuple[SharePartitionKey, int]]:
        """Yields the timestamps (ms) at these offsets. Leaves out batches without a timestamp, and partitions
        that this scrape can no longer look up; the next one looks them up first. Forgets the partitions that
        are not in `oldest`.
        """
        batches = self._batches = {key: batch for key, batch in self._batches.items() if key in oldest}
        unknown = [key for key in oldest if key not in batches]
        behind = [key for key, batch in batches.items() if not _contains(batch, oldest[key])]
        for key in (unknown + behind)[:MAX_LOOKUPS]:
            batches.pop(key, None)
            found = _looked_up(key, oldest[key])
            if found is not None:
                batches[key] = found
        for key, batch in batches.items():
            if _contains(batch, oldest[key]) and batch.timestamp != NO_TIMESTAMP:
                yield key, batch.timestamp


def _contains(batch: _Batch, oldest: OldestOffset) -> bool:
    is_within = batch.first_offset <= oldest.offset <= batch.last_offset
    return is_within and batch.leader_epoch == oldest.leader_epoch


def _looked_up(key: SharePartitionKey, oldest: OldestOffset) -> _Batch | None:
    try:
        found = oldest.log.batch_timestamp(oldest.offset)
    except LogStorageError as error:
        _log.warning("the age of a share partition's oldest record is unknown", key=key, reason=str(error))
        return None
    if found is None:
        return None
    return _Batch(oldest.leader_epoch, oldest.offset, found.offset, found.timestamp)
