"""The incremental fetch sessions of a leader's followers (KIP-227), which know the partitions that have news.

A follower fetches hundreds of partitions in one session, and a pass over all of them at each request would
cost more than the replication itself. Therefore a session keeps the partitions to look at (`dirty`): those
that the request named, and those where records were appended, the high watermark moved or the leader changed
since the last look. A partition whose records were sent stays dirty until the follower's next position
arrives. For every other partition the follower is at the log end and has all offsets, so there is nothing to
send.

Pure: the caller passes the time and random session ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from tidelog.broker.replication.fetch_wire import FetchPosition, FetchPositionKey, FollowerRequest
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import (
    FINAL_EPOCH,
    FIRST_INCREMENTAL_EPOCH,
    FIRST_VERSION_WITH_TOPIC_IDS,
    INITIAL_EPOCH,
    NO_SESSION,
    UNKNOWN_EPOCH,
    UNKNOWN_OFFSET,
    next_epoch,
)
from tidelog.model.topics import TopicPartition

MAX_SESSIONS_PER_FOLLOWER: Final = 64
"""A follower has one session per fetcher (`num.replica.fetchers`). Above this limit, its least recently used
session is closed.
"""


class ParkedFetch(Protocol):
    """A follower's request that waits for news."""

    def wake_soon(self) -> None:
        """Looks at the dirty partitions at the end of this iteration of the event loop."""

    def end(self) -> None:
        """Responds now, with the records that are there, without waiting for more."""


class FollowerFetchPosition:
    """A partition that a follower fetches, and the offsets in the last response about it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "is_throttled",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "replica",
        "sent_high_watermark",
        "sent_log_start_offset",
        "session",
        "topic",
        "topic_id",
        "topic_id_bytes",
        "topic_partition",
    )

    def __init__(self, session: FollowerFetchSession, wanted: FetchPosition) -> None:
        self.session = session
        self.index = wanted.index
        self.topic = wanted.topic
        self.topic_id_bytes = wanted.topic_id
        self.topic_id = uuid.UUID(bytes=wanted.topic_id)
        self.topic_partition: TopicPartition | None = None  # None while the topic id is unknown
        self.replica: object = None  # the replica that the last lookup found
        self.is_throttled = False
        self.update(wanted)

    def update(self, wanted: FetchPosition) -> None:
        """Takes the position from a request. The follower may have sent it before the last response arrived,
        and then ignores that response. Therefore its offsets must be sent again.
        """
        self.sent_high_watermark = UNKNOWN_OFFSET
        self.sent_log_start_offset = UNKNOWN_OFFSET
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset


class FollowerFetchSession:
    """The session of one follower during one registration of its broker. `dirty` is in the order in which the
    partitions are served.
    """

    __slots__ = (
        "broker_epoch",
        "dirty",
        "epoch",
        "last_sweep_ms",
        "parked",
        "partitions",
        "replica_id",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, replica_id: int, broker_epoch: int, uses_topic_ids: bool, now_ms: MonotonicMs
    ) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.uses_topic_ids = uses_topic_ids
        self.epoch = FIRST_INCREMENTAL_EPOCH
        self.last_sweep_ms = now_ms
        self.partitions: dict[FetchPositionKey, FollowerFetchPosition] = {}
        self.dirty: dict[FollowerFetchPosition, None] = {}
        self.parked: ParkedFetch | None = None


class FollowerFetchSessions:
    """The sessions of all followers, and the positions of each partition.

    `topic_names` maps topic ids to names and is read at each use.
    """

    def __init__(self, new_session_id: Callable[[], int], topic_names: Mapping[uuid.UUID, str]) -> None:
        self._new_session_id = new_session_id
        self._topic_names = topic_names
        self._sessions: dict[int, FollowerFetchSession] = {}  # least recently used first
        self.fetched: dict[TopicPartition, list[FollowerFetchPosition]] = {}
        """The positions of each partition that a follower fetches."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FollowerFetchSession]:
        return iter(tuple(self._sessions.values()))

    @property
    def parked_count(self) -> int:
        """The number of requests that wait for news."""
        return sum(session.parked is not None for session in self)

    def open(
        self,
        request: FollowerRequest,
        api_version: int,
        broker_epoch: int,
        now_ms: MonotonicMs,
        sweep_interval_ms: int,
    ) -> FollowerFetchSession:
        """Returns the session of a request. The partitions that the request names become dirty. Every
        `sweep_interval_ms` all partitions become dirty, so that a follower at the log end is still counted as
        caught up.

        `broker_epoch` is -1 if this broker does not know the follower's broker, which then gets no lasting
        session.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.close(request.session_id)
            session = self._create(request, broker_epoch, uses_topic_ids, now_ms)
        else:
            session = self._continue(request, uses_topic_ids)
        self._update(session, request.positions)
        if request.forgotten:
            self._forget(session, request.forgotten)
        if now_ms - session.last_sweep_ms >= sweep_interval_ms:
            session.last_sweep_ms = now_ms
            session.dirty.update(dict.fromkeys(session.partitions.values()))
        return session

    def close(self, session_id: int) -> None:
        """Removes a session and answers its parked request."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.parked is not None:
                session.parked.end()
            self.release(session)

    def close_others(self, replica_id: int, broker_epoch: int) -> None:
        """Closes the sessions from earlier registrations of this follower's broker, which no request
        continues.
        """
        for session in self:
            if session.replica_id == replica_id and session.broker_epoch != broker_epoch:
                self.close(session.session_id)

    def release(self, session: FollowerFetchSession) -> None:
        """Stops collecting news for a closed session, or for a request without a session after its
        response.
        """
        for partition in session.partitions.values():
            self._unwatch(partition)

    def _create(
        self,
        request: FollowerRequest,
        broker_epoch: int,
        uses_topic_ids: bool,
        now_ms: MonotonicMs,
    ) -> FollowerFetchSession:
        replica_id = request.replica_id
        if request.session_epoch == FINAL_EPOCH or not request.positions or broker_epoch == UNKNOWN_EPOCH:
            return FollowerFetchSession(NO_SESSION, replica_id, broker_epoch, uses_topic_ids, now_ms)
        self.close_others(replica_id, broker_epoch)
        own = [session for session in self._sessions.values() if session.replica_id == replica_id]
        if len(own) >= MAX_SESSIONS_PER_FOLLOWER:
            self.close(own[0].session_id)
        session_id = self._new_session_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_session_id()
        session = FollowerFetchSession(session_id, replica_id, broker_epoch, uses_topic_ids, now_ms)
        self._sessions[session_id] = session
        return session

    def _continue(self, request: FollowerRequest, uses_topic_ids: bool) -> FollowerFetchSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.parked is not None:
            session.parked.end()  # the follower does not wait for that response any longer
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.epoch = next_epoch(session.epoch)
        return session

    def _update(self, session: FollowerFetchSession, positions: Sequence[FetchPosition]) -> None:
        partitions, dirty = session.partitions, session.dirty
        for wanted in positions:
            key = wanted.key
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = FollowerFetchPosition(session, wanted)
                self.resolve(partition)
            else:
                partition.update(wanted)
                dirty.pop(partition, None)  # to the end, behind the partitions that have waited longer
            dirty[partition] = None

    def _forget(self, session: FollowerFetchSession, keys: Sequence[FetchPositionKey]) -> None:
        for key in keys:
            partition = session.partitions.pop(key, None)
            if partition is not None:
                session.dirty.pop(partition, None)
                self._unwatch(partition)

    def resolve(self, partition: FollowerFetchPosition) -> None:
        """Looks the topic of a position up, if its id is known by now."""
        name = partition.topic or self._topic_names.get(partition.topic_id)
        if name is not None:
            partition.topic_partition = topic_partition = TopicPartition(name, partition.index)
            self.fetched.setdefault(topic_partition, []).append(partition)

    def _unwatch(self, partition: FollowerFetchPosition) -> None:
        if partition.topic_partition is None:
            return
        fetched = self.fetched.get(partition.topic_partition)
        if fetched is not None and partition in fetched:
            fetched.remove(partition)
            if not fetched:
                del self.fetched[partition.topic_partition]

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """Marks the partition dirty in all sessions and wakes their parked requests: there are records to
        fetch.
        """
        fetched = self.fetched.get(topic_partition)
        if fetched is not None:
            for partition in fetched:
                session = partition.session
                session.dirty[partition] = None
                if session.parked is not None:
                    session.parked.wake_soon()

    def high_watermark_advanced(self, topic_partition: TopicPartition, *, is_urgent: bool) -> None:
        """Marks the partition dirty in all sessions. Wakes their parked requests only if the change
        `is_urgent`; otherwise the next response reports it.
        """
        fetched = self.fetched.get(topic_partition)
        if fetched is not None:
            for partition in fetched:
                session = partition.session
                session.dirty[partition] = None
                if is_urgent and session.parked is not None:
                    session.parked.wake_soon()

    def end_all(self) -> None:
        """Answers all parked requests, because the broker stops."""
        for session in self:
            if session.parked is not None:
                session.parked.end()
