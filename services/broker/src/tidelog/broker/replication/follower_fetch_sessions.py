"""What a leader remembers of its followers' fetches: incremental sessions (KIP-227) that know what has news.

A follower fetches hundreds of partitions in one session, and a pass over all of them at each request would
cost more than the replication itself. So a session keeps the partitions it has to look at (`dirty`): those
the request named, and those where since the last look something was appended, the high watermark moved or
the leader changed. One that got records stays dirty until the follower says what became of them. Everything
else stands as it did: the follower is at the log's end and was told all there is to tell.

Pure: the clock and random session ids come in.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from tidelog.broker.replication.fetch_wire import FollowerRequest, PartitionKey, Position
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
UNKNOWN_OFFSET: Final = -1
UNKNOWN_EPOCH: Final = -1
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
MAX_SESSIONS_PER_FOLLOWER: Final = 64
"""A follower has one for each of its fetchers (`num.replica.fetchers`); beyond it the one used least recently
goes.
"""


class ParkedFetch(Protocol):
    """A request that waits for news."""

    def wake_soon(self) -> None:
        """Something is dirty; look at the end of this turn of the event loop."""

    def end(self) -> None:
        """Answer now with what there is."""


class FollowerPosition:
    """One partition that a follower fetches: where from, and what it was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "is_throttled",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "replica",
        "session",
        "told_high_watermark",
        "told_log_start_offset",
        "topic",
        "topic_id",
        "topic_id_bytes",
        "topic_partition",
    )

    def __init__(self, session: FollowerFetchSession, wanted: Position) -> None:
        self.session = session
        self.index = wanted.index
        self.topic = wanted.topic
        self.topic_id_bytes = wanted.topic_id
        self.topic_id = uuid.UUID(bytes=wanted.topic_id)
        self.topic_partition: TopicPartition | None = None  # while the topic's id is unknown
        self.replica: object = None  # the one that was found to be what is meant
        self.is_throttled = False
        self.update(wanted)

    def update(self, wanted: Position) -> None:
        """What the request says of it. One that names a partition may have been sent before the last answer
        was there, which the follower then passes over: what that told has to be told again.
        """
        self.told_high_watermark = UNKNOWN_OFFSET
        self.told_log_start_offset = UNKNOWN_OFFSET
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.log_start_offset = wanted.log_start_offset


class FollowerFetchSession:
    """`dirty` is in the order in which the partitions are to be served. Belongs to one life of a follower."""

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
        self, session_id: int, replica_id: int, broker_epoch: int, uses_topic_ids: bool, now_ms: int
    ) -> None:
        self.session_id = session_id
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.uses_topic_ids = uses_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        self.last_sweep_ms = now_ms
        self.partitions: dict[PartitionKey, FollowerPosition] = {}
        self.dirty: dict[FollowerPosition, None] = {}
        self.parked: ParkedFetch | None = None


class FollowerFetchSessions:
    """The sessions of all followers, and who fetches which partition.

    `topic_names` maps ids to names and is read at each use.
    """

    def __init__(self, new_session_id: Callable[[], int], topic_names: Mapping[uuid.UUID, str]) -> None:
        self._new_session_id = new_session_id
        self._topic_names = topic_names
        self._sessions: dict[int, FollowerFetchSession] = {}  # least recently used first
        self._fetched: dict[TopicPartition, list[FollowerPosition]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[FollowerFetchSession]:
        return iter(tuple(self._sessions.values()))

    @property
    def parked_count(self) -> int:
        return sum(session.parked is not None for session in self)

    # -- requests

    def open(
        self,
        request: FollowerRequest,
        api_version: int,
        broker_epoch: int,
        now_ms: int,
        sweep_interval_ms: int,
    ) -> FollowerFetchSession:
        """The session of this request; what the request names is dirty, and each `sweep_interval_ms` all of
        it: a follower that stands at the log's end has to be seen to do so from time to time.

        A `broker_epoch` of -1 is that of nobody this broker knows: it gets no session that lasts.
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
        """Forget it; a request of it that waits is answered."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.parked is not None:
                session.parked.end()
            self.release(session)

    def close_others(self, replica_id: int, broker_epoch: int) -> None:
        """Those of earlier lives of this follower: nobody will ever go on with them."""
        for session in self:
            if session.replica_id == replica_id and session.broker_epoch != broker_epoch:
                self.close(session.session_id)

    def release(self, session: FollowerFetchSession) -> None:
        """Nothing is noted for it any more; also for one that never had an id, once it is answered."""
        for partition in session.partitions.values():
            self._unwatch(partition)

    def _create(
        self,
        request: FollowerRequest,
        broker_epoch: int,
        uses_topic_ids: bool,
        now_ms: int,
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
            session.parked.end()  # the follower has more to say: it does not wait for that answer
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        return session

    def _update(self, session: FollowerFetchSession, positions: Sequence[Position]) -> None:
        partitions, dirty = session.partitions, session.dirty
        for wanted in positions:
            key = wanted.key
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = FollowerPosition(session, wanted)
                self.resolve(partition)
            else:
                partition.update(wanted)
                dirty.pop(partition, None)  # to the end: those that wait longer come first
            dirty[partition] = None

    def _forget(self, session: FollowerFetchSession, keys: Sequence[PartitionKey]) -> None:
        for key in keys:
            partition = session.partitions.pop(key, None)
            if partition is not None:
                session.dirty.pop(partition, None)
                self._unwatch(partition)

    def resolve(self, partition: FollowerPosition) -> None:
        """Find out which topic is meant, if that is known by now."""
        name = partition.topic or self._topic_names.get(partition.topic_id)
        if name is not None:
            partition.topic_partition = topic_partition = TopicPartition(name, partition.index)
            self._fetched.setdefault(topic_partition, []).append(partition)

    def _unwatch(self, partition: FollowerPosition) -> None:
        if partition.topic_partition is None:
            return
        fetched = self._fetched.get(partition.topic_partition)
        if fetched is not None and partition in fetched:
            fetched.remove(partition)
            if not fetched:
                del self._fetched[partition.topic_partition]

    # -- news

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """There is something to fetch: who waits for it is woken."""
        fetched = self._fetched.get(topic_partition)
        if fetched is not None:
            for partition in fetched:
                session = partition.session
                session.dirty[partition] = None
                if session.parked is not None:
                    session.parked.wake_soon()

    def high_watermark_advanced(self, topic_partition: TopicPartition, *, is_urgent: bool) -> None:
        """To be told with the next answer; who waits is woken for it only if it `is_urgent`."""
        fetched = self._fetched.get(topic_partition)
        if fetched is not None:
            for partition in fetched:
                session = partition.session
                session.dirty[partition] = None
                if is_urgent and session.parked is not None:
                    session.parked.wake_soon()

    def end_all(self) -> None:
        """Answer whatever waits, as at a shutdown."""
        for session in self:
            if session.parked is not None:
                session.parked.end()
