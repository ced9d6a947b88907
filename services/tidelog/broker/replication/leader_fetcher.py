"""The fetcher from one leader: it fetches, appends and fetches again, for all partitions that this broker
follows there.

The response to a Fetch is appended directly from the receive buffer, and the next Fetch leaves at once: it
also tells the leader that the records have arrived. A partition without news costs nothing. A partition that
fails, or whose log is being truncated, leaves the session in the meantime; the other partitions continue.

Runs on the event loop, in the callbacks of the connection. Source: Kafka's `AbstractFetcherThread` and
`ReplicaFetcherThread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol, cast

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.net.socket_io import BufferPool
from tidelog.broker.partition.batch_validation import received_headers
from tidelog.broker.partition.events import EpochDiverged
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.fetch_wire import (
    FETCH_VERSION,
    FollowerAnswer,
    FollowerRequest,
    PartitionNews,
    decode_answer,
    encode_request,
)
from tidelog.broker.replication.followed_partition import (
    EXPECTED_WHILE_ROLES_CHANGE,
    FAILURES_EXPECTED,
    FollowedPartition,
    FollowerContext,
    LeaderFetchSession,
)
from tidelog.broker.replication.leader_connection import (
    LeaderConnection,
    LeaderLink,
    OnLost,
    Question,
)
from tidelog.broker.replication.leader_connector import LeaderConnector
from tidelog.broker.replication.leader_questions import LeaderQuestions
from tidelog.kernel.instants import WallMs
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import LOG_OVERHEAD_BYTES, BatchHeader
from tidelog.wire.api_keys import ApiKey

FETCH: Final = Question(ApiKey.FETCH, FETCH_VERSION, encode_request, decode_answer)
MAX_FETCHES_IN_FLIGHT: Final = 2
"""One Fetch, and a second one that reports a partition which was added while the first one waits at the
leader. The leader then ends the wait of the first. If it did not, records that arrive twice would be appended
once.
"""
FAILURES_BETWEEN_WARNINGS: Final = 60
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_NO_RECORDS: Final = memoryview(b"")
_log = structlog.get_logger(__name__)


class FetcherOwner(Protocol):
    """The part of `ReplicaFetchers` that a fetcher uses. `ReplicaFetchers` creates and stops the fetchers."""

    @property
    def buffer_pool(self) -> BufferPool: ...

    def endpoint_of(self, leader_id: int) -> Endpoint | None:
        """Returns the address of the leader's inter-broker listener, None if it is unknown."""
        ...

    def is_followed(self, replica: Replica) -> bool:
        """Returns whether this broker follows a leader in this replica."""
        ...

    def resume(self, replica: Replica) -> None:
        """Fetches the replica, if its state allows it, from its current leader."""
        ...

    def received(self, followed: FollowedPartition, size_bytes: int) -> None:
        """Counts bytes that were appended."""
        ...

    def flush_epochs(self, followed: FollowedPartition) -> None:
        """Flushes the leader-epoch checkpoint, then fetches the partition again."""
        ...

    def flush_before_fetch(self, followed: FollowedPartition) -> None:
        """Flushes the log, then fetches the partition again."""
        ...


class LeaderFetcher:
    """Fetches the partitions that this broker follows at one leader, over one connection."""

    def __init__(self, owner: FetcherOwner, context: FollowerContext, leader_id: int) -> None:
        self.leader_id = leader_id
        self.session = LeaderFetchSession()
        self._owner = owner
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._link = LeaderLink(
            leader_id,
            partial(owner.endpoint_of, leader_id),
            self._open_connection,
            longest_backoff_ms=context.settings.broker.replica_fetch_backoff_ms,
            on_up=self._on_up,
            on_down=self._on_down,
        )
        self._connected_epoch = -1
        self._connector = LeaderConnector(
            context.settings, owner.buffer_pool, f"broker-{context.identity.broker_id}-fetcher"
        )
        self._fetches = 0
        self._is_urgent = False
        self._fetches_soon = False
        self._is_pausing = False
        self._failures = 0
        self.questions = LeaderQuestions(self, context)
        self.is_stopped = False
        self.followed_count = 0
        """The partitions that belong to this fetcher, whether they are fetched at the moment or not."""

    @property
    def is_idle(self) -> bool:
        """Whether the fetcher has nothing to do and can be stopped."""
        return not self.followed_count and self.questions.is_empty

    def resume(self, followed: FollowedPartition) -> None:
        """Fetches the partition, if its state allows it."""
        if followed.may_fetch and not followed.is_fetched and not self.is_stopped:
            if followed.replica.core.is_flush_due:
                self._owner.flush_before_fetch(followed)
                return
            followed.refresh()
            self.session.add(followed)
            self._is_urgent = True
            if not self._fetches_soon:
                self._fetches_soon = True
                self._loop.call_soon(self._fetch_added)

    def leave(self, followed: FollowedPartition) -> None:
        """Stops fetching the partition."""
        self.session.remove(followed)

    def brokers_changed(self) -> None:
        """Connects to the leader's new address, if it has one, or to the leader after its restart. A
        connection to the previous process may lead nowhere: when a pod is deleted, its address goes without a
        FIN or RST.
        """
        epoch = self._leader_broker_epoch()
        if epoch >= 0 and epoch != self._connected_epoch:
            self._link.lose("the leader registered again")
        self._link.retry_now()

    def _leader_broker_epoch(self) -> int:
        """Returns the leader's broker epoch, -1 while it is unknown."""
        leader = self._context.metadata.brokers.get(self.leader_id)
        return -1 if leader is None else leader.broker_epoch

    async def stop(self) -> None:
        """Closes the connection. Nothing is fetched afterwards."""
        self.is_stopped = True
        self._connector.close()
        await self._link.close()

    async def _open_connection(self, endpoint: Endpoint, on_lost: OnLost) -> LeaderConnection:
        self._connected_epoch = self._leader_broker_epoch()
        return await self._connector.open(endpoint, on_lost)

    def _on_up(self) -> None:
        self.questions.send()
        self._fetch()

    def _on_down(self) -> None:
        self._fetches = 0
        self.session.restart()
        self.questions.connection_lost()
        if not self.is_idle:
            self._link.want()

    def _fetch_added(self) -> None:
        """Fetches all partitions that were added in this iteration of the event loop with one request."""
        self._fetches_soon = False
        self._fetch()

    def _fetch(self) -> None:
        """Sends the next request, if it may be sent now."""
        session, in_flight = self.session, self._fetches
        if self.is_stopped or self._is_pausing or session.is_empty:
            return
        if in_flight and (not self._is_urgent or session.is_opening or in_flight >= MAX_FETCHES_IN_FLIGHT):
            return
        connection = self._link.connection
        if connection is None:
            self._link.want()
        else:
            self._is_urgent = False
            # The first response brings the session's id; no other request can be sent before.
            is_short = session.is_opening and not session.is_without
            max_wait_ms = 0 if is_short else self._context.settings.broker.replica_fetch_wait_max_ms
            self._send_fetch(connection, max_wait_ms)

    def _send_fetch(self, connection: LeaderConnection, max_wait_ms: int) -> None:
        session, settings, identity = self.session, self._context.settings.broker, self._context.identity
        session_id, session_epoch, positions, forgotten = session.next_request()
        request = FollowerRequest(
            identity.broker_id,
            identity.broker_epoch,
            max_wait_ms,
            settings.replica_fetch_min_bytes,
            settings.replica_fetch_response_max_bytes,
            session_id,
            session_epoch,
            positions,
            forgotten,
        )
        self._fetches += 1
        connection.send(
            FETCH,
            request,
            settings.replica_socket_timeout_ms,
            partial(self._on_fetched, session.last_request),
        )

    def _on_fetched(self, number: int, response: FollowerAnswer) -> None:
        self._fetches -= 1
        session = self.session
        if number < session.first_valid_request or self.is_stopped:
            self._fetch()
            return
        if response.error_code:
            self._on_fetch_refused(ErrorCode(response.error_code))
            return
        session.answered(response.session_id)
        self._failures = 0
        self._link.works()
        now_ms = self._context.clock.wall_ms()
        for news in response.partitions:
            position = session.position_of(news.topic_id, news.index)
            if position is not None and number >= position.valid_from:
                self._take(cast(FollowedPartition, position), news, now_ms)
        self._fetch()

    def _on_fetch_refused(self, error: ErrorCode) -> None:
        """Handles an error of the whole request. A lost session is opened again at once, but only once in a
        row.
        """
        self.session.restart()
        self._failures += 1
        if error in _SESSION_ERRORS and self._failures == 1:
            self._fetch()
            return
        _log.warning("leader refuses the fetch request", leader=self.leader_id, error=error.name)
        self._is_pausing = True
        timer = self._context.timer
        timer.add_after(self._end_pause, self._context.settings.broker.replica_fetch_backoff_ms)

    def _end_pause(self) -> None:
        self._is_pausing = False
        self._fetch()

    def _take(self, followed: FollowedPartition, news: PartitionNews, now_ms: WallMs) -> None:
        """Handles one partition of a response."""
        if news.error_code:
            self._refused(followed, ErrorCode(news.error_code))
            return
        diverging = news.diverging
        replica, core = followed.replica, followed.replica.core
        if diverging is not None:
            self.session.remove(followed)
            replica.step(EpochDiverged(followed.leader_epoch, *diverging))
            if followed.refresh():
                self.resume(followed)
            elif followed.may_fetch:  # there is nothing to truncate; an immediate retry would change nothing
                self.failed(followed, KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "the logs disagree"))
            return
        records = cast(memoryview, news.records)
        headers: Sequence[BatchHeader] = ()
        try:
            if records:
                end = core.log_end_offset
                has_nothing = core.log_start_offset == end or news.log_start_offset >= end
                headers = received_headers(records, 0 if has_nothing else end)
            is_done = replica.append_received(
                records if records else _NO_RECORDS,
                headers,
                followed.leader_epoch,
                news.high_watermark,
                news.log_start_offset,
                now_ms,
            )
        except KafkaError as error:
            self.failed(followed, error)
            return
        if not is_done:
            self.session.remove(followed)
            self._owner.flush_epochs(followed)
            return
        if core.fetch_state is not FetchState.FETCHING:  # the log restarts at another offset first
            self.session.remove(followed)
            return
        followed.failures = 0
        followed.lag = max(0, news.high_watermark - core.log_end_offset)
        if headers:
            self._owner.received(followed, _bytes_below(core.log_end_offset, headers))
            if core.is_flush_due:
                self.session.remove(followed)
                self._owner.flush_before_fetch(followed)
                return
        if followed.refresh():
            self.session.moved(followed)

    def _refused(self, followed: FollowedPartition, error: ErrorCode) -> None:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The leader's log does not contain the fetch offset. Ask where it starts and ends.
            self.session.remove(followed)
            self.questions.ask_bounds(followed)
            return
        self.failed(followed, KafkaError(error))

    def failed(self, followed: FollowedPartition, error: KafkaError) -> None:
        """Pauses a partition after an error, longer after each failure in a row."""
        self.session.remove(followed)
        pause_ms = followed.backoff_ms(self._context.settings.broker.replica_fetch_backoff_ms)
        is_first = followed.failures == (
            FAILURES_EXPECTED if error.code in EXPECTED_WHILE_ROLES_CHANGE else 1
        )
        if is_first or followed.failures % FAILURES_BETWEEN_WARNINGS == 0:
            _log.warning(
                "partition cannot be replicated; the follower retries",
                partition=str(followed.replica.topic_partition),
                leader=self.leader_id,
                leader_epoch=followed.leader_epoch,
                error=error.code.name,
                reason=str(error),
                failures=followed.failures,
            )
        self.resume_after(followed, pause_ms)

    def resume_after(self, followed: FollowedPartition, pause_ms: int) -> None:
        """Fetches a partition again after a pause."""
        timer = self._context.timer
        timer.add_after(partial(self.resume, followed), pause_ms)

    def connection_for_questions(self) -> LeaderConnection | None:
        connection = self._link.connection
        if self.is_stopped:
            return None
        if connection is None:
            self._link.want()
        # Responses come in order, and a Fetch may wait at the leader. A second Fetch without a wait ends
        # that.
        elif self._fetches == 1 and not self.session.is_opening and not self._is_pausing:
            self._send_fetch(connection, 0)
        return connection

    def follows(self, replica: Replica) -> bool:
        return not self.is_stopped and self._owner.is_followed(replica)

    def resume_replica(self, replica: Replica) -> None:
        self._owner.resume(replica)


def _bytes_below(log_end_offset: int, headers: Sequence[BatchHeader]) -> int:
    """Returns the size of the batches that were appended: the end of a segment may have stopped the
    append.
    """
    if headers[-1].base_offset >= log_end_offset:
        headers = [header for header in headers if header.base_offset < log_end_offset]
    return sum([header.batch_length for header in headers]) + LOG_OVERHEAD_BYTES * len(headers)
