"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches, so each request and
answer names only what changed.

Pure: the clock and random session ids come in. Semantics and limits of Kafka's `FetchSession`,
`FetchSessionCache`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
MIN_EVICTION_MS: Final = 120_000
"""A session that was used more recently is evicted only for a larger one."""
UNKNOWN_OFFSET: Final = -1


class PartitionKey(NamedTuple):
    """By name up to v12, by topic id from v13 on (the other is the empty value)."""

    topic: str
    topic_id: uuid.UUID
    partition: int


class FetchedPartition:
    """One partition that a client fetches, and what it was last told of it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "max_bytes",
        "told_high_watermark",
        "told_log_start_offset",
    )

    def __init__(self, key: PartitionKey, wanted: FetchPartition) -> None:
        self.key = key
        self.told_high_watermark = UNKNOWN_OFFSET
        self.told_log_start_offset = UNKNOWN_OFFSET
        self.update(wanted)

    def update(self, wanted: FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    def is_news(self, error: int, high_watermark: int, log_start_offset: int, has_records: bool) -> bool:
        """Whether an incremental answer has to name this partition; remembers what is told."""
        news = (
            has_records
            or error != 0
            or high_watermark != self.told_high_watermark
            or log_start_offset != self.told_log_start_offset
        )
        if error:
            self.told_high_watermark = UNKNOWN_OFFSET  # name it again once the error is gone
        else:
            self.told_high_watermark = high_watermark
        self.told_log_start_offset = log_start_offset
        return news


class FetchSession:
    __slots__ = ("created_ms", "epoch", "last_used_ms", "partitions", "session_id", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        partitions: dict[PartitionKey, FetchedPartition],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> None:
        self.session_id = session_id
        self.partitions = partitions
        self.uses_topic_ids = uses_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        self.created_ms = self.last_used_ms = now_ms

    def move_to_end(self, key: PartitionKey) -> None:
        """A partition that got data waits behind the others next time, so that none starves.

        It may be forgotten: by a request that came while this one's answer waited.
        """
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


class FetchPlan(NamedTuple):
    """What one Fetch request is about. Without a session everything asked for is answered; with an
    incremental one, only news.
    """

    partitions: list[FetchedPartition]
    session: FetchSession | None
    is_incremental: bool


class FetchSessions:
    """At most `slots` sessions (`max.incremental.fetch.session.cache.slots`); without a free one a client
    is served sessionless.
    """

    def __init__(self, slots: int, new_session_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_session_id = new_session_id
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evicted_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.partitions) for session in tuple(self._sessions.values()))

    def plan(self, request: FetchRequest, api_version: int, now_ms: int) -> FetchPlan:
        """Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            partitions = {part.key: part for part in _wanted(request, uses_topic_ids)}
            session = None
            if request.session_epoch == INITIAL_EPOCH and partitions:
                session = self._try_create(partitions, uses_topic_ids, now_ms)
            return FetchPlan(list(partitions.values()), session, is_incremental=False)
        return self._continue(request, uses_topic_ids, now_ms)

    def _continue(self, request: FetchRequest, uses_topic_ids: bool, now_ms: int) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        for wanted in _wanted(request, uses_topic_ids):
            known = session.partitions.get(wanted.key)
            if known is None:
                session.partitions[wanted.key] = wanted
            else:
                known.fetch_offset = wanted.fetch_offset
                known.max_bytes = wanted.max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
        for key in _forgotten(request.forgotten_topics_data, uses_topic_ids):
            session.partitions.pop(key, None)
        del self._sessions[session.session_id]
        if not session.partitions:
            return FetchPlan([], None, is_incremental=True)
        self._sessions[session.session_id] = session
        session.last_used_ms = now_ms
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        return FetchPlan(list(session.partitions.values()), session, is_incremental=True)

    def _try_create(
        self, partitions: dict[PartitionKey, FetchedPartition], uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots and not self._evict_for(len(partitions), now_ms):
            return None
        session_id = self._new_session_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_session_id()
        session = FetchSession(session_id, partitions, uses_topic_ids, now_ms)
        self._sessions[session_id] = session
        return session

    def _evict_for(self, size: int, now_ms: int) -> bool:
        """Make room: the least recently used if it is stale, else the smallest one that is both old and
        smaller than `size`.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > MIN_EVICTION_MS:
            del self._sessions[oldest.session_id]
            self.evicted_total += 1
            return True
        evictable = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > MIN_EVICTION_MS and len(session.partitions) < size
        ]
        if not evictable:
            return False
        smallest = min(evictable, key=lambda session: len(session.partitions))
        del self._sessions[smallest.session_id]
        self.evicted_total += 1
        return True


_NO_TOPIC_ID = uuid.UUID(int=0)


def _wanted(request: FetchRequest, uses_topic_ids: bool) -> Iterator[FetchedPartition]:
    for topic in request.topics:
        for part in topic.partitions:
            key = (
                PartitionKey("", topic.topic_id, part.partition)
                if uses_topic_ids
                else PartitionKey(topic.topic, _NO_TOPIC_ID, part.partition)
            )
            yield FetchedPartition(key, part)


def _forgotten(topics: Iterable[ForgottenTopic], uses_topic_ids: bool) -> Iterator[PartitionKey]:
    for topic in topics:
        for partition in topic.partitions:
            if uses_topic_ids:
                yield PartitionKey("", topic.topic_id, partition)
            else:
                yield PartitionKey(topic.topic, _NO_TOPIC_ID, partition)
