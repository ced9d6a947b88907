"""The incremental fetch sessions of clients (KIP-227): the broker remembers what a client fetches, so each
request and each response names only what changed.

Pure: the caller passes the time and random session ids. The semantics are those of Kafka's `FetchSession`.
Unlike in Kafka's `FetchSessionCache`, clients share the room fairly.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.kernel.instants import MonotonicMs
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.fair_budget import FairBudget, Holding
from tidelog.model.protocol_values import (
    FINAL_EPOCH,
    FIRST_INCREMENTAL_EPOCH,
    FIRST_VERSION_WITH_TOPIC_IDS,
    INITIAL_EPOCH,
    NO_SESSION,
    UNKNOWN_OFFSET,
    next_epoch,
)

if TYPE_CHECKING:
    from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, ForgottenTopic

MIN_EVICTION_MS: Final = 120_000
"""A session that was used within this time is evicted only if its client has more than its fair share."""
DEFAULT_MAX_PARTITIONS: Final = 200_000
"""The default of `tidelog.max.fetch.session.partitions`. A partition takes 250 bytes."""


class ClientPartitionKey(NamedTuple):
    """Names a partition by topic name up to v12, and by topic id from v13 on; the other field is empty."""

    topic: str
    topic_id: uuid.UUID
    partition: int


class ClientFetchPosition:
    """A partition that a client fetches, and the offsets in the last response about it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
    )

    def __init__(self, key: ClientPartitionKey, wanted: FetchPartition) -> None:
        self.key = key
        self.sent_high_watermark = UNKNOWN_OFFSET
        self.sent_log_start_offset = UNKNOWN_OFFSET
        self.update(wanted)

    def update(self, wanted: FetchPartition) -> None:
        """Takes the position from a request."""
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    def is_news(self, error: int, high_watermark: int, log_start_offset: int, has_more: bool) -> bool:
        """Returns whether an incremental response must name this partition, and remembers what it says.
        `has_more` means that it has records, or another reason to be named.
        """
        news = (
            has_more
            or error != 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        if error:
            self.sent_high_watermark = UNKNOWN_OFFSET  # names it again after the error
        else:
            self.sent_high_watermark = high_watermark
        self.sent_log_start_offset = log_start_offset
        return news


class ClientFetchSession:
    """The session of one client. `slot` and `room` are its parts of the budgets of slots and partitions."""

    __slots__ = ("epoch", "last_used_ms", "partitions", "room", "session_id", "slot", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        partitions: dict[ClientPartitionKey, ClientFetchPosition],
        uses_topic_ids: bool,
        now_ms: MonotonicMs,
        evict: Callable[[], None],
    ) -> None:
        self.session_id = session_id
        self.partitions = partitions
        self.uses_topic_ids = uses_topic_ids
        self.epoch = FIRST_INCREMENTAL_EPOCH
        self.last_used_ms = now_ms
        self.slot = Holding(evict, self._used_s)
        self.room = Holding(evict, self._used_s)

    def _used_s(self) -> float:
        return self.last_used_ms / 1000

    def move_to_end(self, key: ClientPartitionKey) -> None:
        """Moves a partition that received records behind the others, so that none starves.

        Does nothing if a later request has removed the partition while this one waited.
        """
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


class FetchPlan(NamedTuple):
    """The positions that one Fetch request reads. Without a session the response names all of them, with an
    incremental session only those with news.
    """

    partitions: list[ClientFetchPosition]
    session: ClientFetchSession | None
    is_incremental: bool


class ClientFetchSessions:
    """At most `slots` sessions (`max.incremental.fetch.session.cache.slots`) with `max_partitions` in all,
    which clients share fairly. If there is no room, sessions without use end first, and then those of clients
    above their fair share, for a client below it. A client that finds no room is served without a session.
    Deviation: Kafka's larger sessions evict smaller ones, whoever has them.

    A session admits only partitions for which `is_known` is true, and that the client may read. A client that
    asks for another one is served without a session, or its session ends and it begins again. Deviation:
    Kafka's sessions have any number of partitions, whether they exist or not.
    """

    def __init__(
        self,
        slots: int,
        new_session_id: Callable[[], int],
        max_partitions: int = DEFAULT_MAX_PARTITIONS,
        is_known: Callable[[ClientPartitionKey], bool] | None = None,
    ) -> None:
        self.slots = FairBudget(slots, stalled_s=MIN_EVICTION_MS / 1000)
        self.room = FairBudget(max_partitions, stalled_s=MIN_EVICTION_MS / 1000)
        self._new_session_id = new_session_id
        self._is_known = is_known
        self._sessions: dict[int, ClientFetchSession] = {}  # least recently used first
        self.evicted_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    @property
    def partition_count(self) -> int:
        """The number of partitions in all sessions."""
        return self.room.held

    def plan(
        self,
        request: FetchRequest,
        api_version: int,
        client: str,
        now_ms: MonotonicMs,
        may_read: Callable[[ClientPartitionKey], bool] | None = None,
    ) -> FetchPlan:
        """Returns the plan of a request. `client` is the client's key in fair budgets. With `may_read`, a
        session does not show a client whether a partition that it may not read exists.

        Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        uses_topic_ids = api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.remove(request.session_id)
            partitions = {part.key: part for part in _wanted(request, uses_topic_ids)}
            session = None
            if request.session_epoch == INITIAL_EPOCH and partitions:
                session = self._try_create(partitions, uses_topic_ids, client, now_ms, may_read)
            return FetchPlan(list(partitions.values()), session, is_incremental=False)
        return self._continue(request, uses_topic_ids, client, now_ms, may_read)

    def _continue(
        self,
        request: FetchRequest,
        uses_topic_ids: bool,
        client: str,
        now_ms: MonotonicMs,
        may_read: Callable[[ClientPartitionKey], bool] | None,
    ) -> FetchPlan:
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
                if not self._may_admit(wanted.key, may_read):
                    self.remove(session.session_id)
                    raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                session.partitions[wanted.key] = wanted
            else:
                known.fetch_offset = wanted.fetch_offset
                known.max_bytes = wanted.max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
        for key in _forgotten(request.forgotten_topics_data, uses_topic_ids):
            session.partitions.pop(key, None)
        if not session.partitions:
            self.remove(session.session_id)
            return FetchPlan([], None, is_incremental=True)
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.last_used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        if not self._resize(self.room, session.room, client, len(session.partitions), now_ms):
            self.remove(session.session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(list(session.partitions.values()), session, is_incremental=True)

    def _try_create(
        self,
        partitions: dict[ClientPartitionKey, ClientFetchPosition],
        uses_topic_ids: bool,
        client: str,
        now_ms: MonotonicMs,
        may_read: Callable[[ClientPartitionKey], bool] | None,
    ) -> ClientFetchSession | None:
        if not all(self._may_admit(key, may_read) for key in partitions):
            return None
        session_id = self._new_session_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_session_id()
        session = ClientFetchSession(
            session_id, partitions, uses_topic_ids, now_ms, lambda: self._evict(session_id)
        )
        self._sessions[session_id] = session
        if self._resize(self.slots, session.slot, client, 1, now_ms) and self._resize(
            self.room, session.room, client, len(partitions), now_ms
        ):
            return session
        self.remove(session_id)
        return None

    def _resize(
        self, budget: FairBudget, holding: Holding, client: str, amount: int, now_ms: MonotonicMs
    ) -> bool:
        """Lets a session have `amount` of a budget. Sessions that were not used for a while make room first,
        the least recently used ones before others. Returns False if there is no room.
        """
        growth = amount - holding.amount
        if growth > budget.capacity:
            return False
        while growth > max(budget.spare_left, 0):
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms <= MIN_EVICTION_MS:
                break
            self._evict(oldest.session_id)
        return budget.resize(holding, client, amount, now_ms / 1000)

    def _may_admit(
        self, key: ClientPartitionKey, may_read: Callable[[ClientPartitionKey], bool] | None
    ) -> bool:
        is_known = self._is_known is None or self._is_known(key)
        return is_known and (may_read is None or may_read(key))

    def remove(self, session_id: int) -> None:
        """Ends a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            used_s = session.last_used_ms / 1000
            self.slots.forget(session.slot, used_s)
            self.room.forget(session.room, used_s)

    def _evict(self, session_id: int) -> None:
        self.evicted_total += 1
        self.remove(session_id)


_NO_TOPIC_ID = uuid.UUID(int=0)


def _wanted(request: FetchRequest, uses_topic_ids: bool) -> Iterator[ClientFetchPosition]:
    for topic in request.topics:
        for part in topic.partitions:
            key = (
                ClientPartitionKey("", topic.topic_id, part.partition)
                if uses_topic_ids
                else ClientPartitionKey(topic.topic, _NO_TOPIC_ID, part.partition)
            )
            yield ClientFetchPosition(key, part)


def _forgotten(topics: Iterable[ForgottenTopic], uses_topic_ids: bool) -> Iterator[ClientPartitionKey]:
    for topic in topics:
        for partition in topic.partitions:
            if uses_topic_ids:
                yield ClientPartitionKey("", topic.topic_id, partition)
            else:
                yield ClientPartitionKey(topic.topic, _NO_TOPIC_ID, partition)
