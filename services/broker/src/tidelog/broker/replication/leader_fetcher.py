"""Following one leader: fetch, append, fetch on, for all partitions that this broker follows it in.

The answer to a Fetch is appended where it stands in the receive buffer, and the next Fetch leaves at once: it
is also what tells the leader that the records are here. Nothing is done for a partition that has no news. A
partition that fails, or whose log is being cut, is left out of the session meanwhile; the others go on.

Runs on the event loop, in the callbacks of the channel. Source: Kafka's `AbstractFetcherThread`,
`ReplicaFetcherThread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import structlog
from tidelog.broker.partition.events import EpochDiverged
from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.partition.received_validation import received_headers
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
)
from tidelog.broker.replication.follower_session import FollowerSession
from tidelog.broker.replication.leader_channel import LeaderChannel, OnLost, Question, open_channel
from tidelog.broker.replication.leader_link import LeaderLink
from tidelog.broker.replication.leader_questions import LeaderQuestions
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.records.batch import LOG_OVERHEAD_BYTES, BatchHeader
from tidelog.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.replica import Replica
    from tidelog.broker.replication.replica_fetchers import ReplicaFetchers

FETCH: Final = Question(ApiKey.FETCH, FETCH_VERSION, encode_request, decode_answer)
MAX_FETCHES_UNDER_WAY: Final = 2
"""One, and one more that tells of a partition which came while the first waits at the leader. A leader ends
its wait for that (and if it did not, what is answered twice would be taken once)."""
FAILURES_BETWEEN_WARNINGS: Final = 60
_SESSION_IS_GONE: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_log = structlog.get_logger(__name__)


class LeaderFetcher:
    """Made and stopped by `ReplicaFetchers`."""

    def __init__(self, owner: ReplicaFetchers, leader_id: int) -> None:
        self.leader_id = leader_id
        self.session = FollowerSession()
        self._owner = owner
        self.broker = owner.broker
        self._settings = owner.broker.settings
        self._loop = asyncio.get_running_loop()
        self._link = LeaderLink(
            leader_id,
            partial(owner.endpoint_of, leader_id),
            self._open_channel,
            longest_backoff_ms=self._settings.replica_fetch_backoff_ms,
            on_up=self._on_up,
            on_down=self._on_down,
        )
        self._connected_life = -1
        self._fetches = 0
        self._is_urgent = False
        self._fetches_soon = False
        self._is_pausing = False
        self._failures = 0
        self.questions = LeaderQuestions(self, owner.resume)
        self.is_stopped = False
        self.followed_count = 0
        """Partitions that belong here, fetched at the moment or not."""

    # -- for ReplicaFetchers

    @property
    def is_idle(self) -> bool:
        return not self.followed_count and self.questions.is_empty

    def resume(self, followed: FollowedPartition) -> None:
        """Fetch it, if its state is to be fetched."""
        if followed.may_fetch and not followed.is_fetched and not self.is_stopped:
            followed.refresh()
            self.session.add(followed)
            self._is_urgent = True
            if not self._fetches_soon:
                self._fetches_soon = True
                self._loop.call_soon(self._fetch_added)

    def leave(self, followed: FollowedPartition) -> None:
        """Fetch it no longer."""
        self.session.remove(followed)

    def brokers_changed(self) -> None:
        """The leader may have an address now, or be in another life. A connection to the one before may be to
        nobody: a pod that goes takes its address along, without a word to those connected.
        """
        life = self._leader_life()
        if life >= 0 and life != self._connected_life:
            self._link.lose("the leader has begun another life")
        self._link.retry_now()

    def _leader_life(self) -> int:
        """Its broker epoch; -1 while it is not known."""
        leader = self.broker.metadata.brokers.get(self.leader_id)
        return -1 if leader is None else leader.broker_epoch

    async def stop(self) -> None:
        self.is_stopped = True
        await self._link.close()

    # -- the connection

    async def _open_channel(self, endpoint: Endpoint, on_lost: OnLost) -> LeaderChannel:
        settings = self._settings
        self._connected_life = self._leader_life()
        return await open_channel(
            endpoint,
            self._owner.buffer_pool,
            client_id=f"broker-{self.broker.broker_id}-fetcher",
            receive_buffer_bytes=settings.replica_socket_receive_buffer_bytes,
            timeout_ms=settings.replica_socket_timeout_ms,
            on_lost=on_lost,
        )

    def _on_up(self) -> None:
        self.questions.send()
        self._fetch()

    def _on_down(self) -> None:
        self._fetches = 0
        self.session.restart()
        self.questions.connection_lost()
        if not self.is_idle:
            self._link.want()

    # -- fetching

    def _fetch_added(self) -> None:
        """All that was added in this turn goes with one request."""
        self._fetches_soon = False
        self._fetch()

    def _fetch(self) -> None:
        """Send the next request if it may be sent now."""
        session, under_way = self.session, self._fetches
        if self.is_stopped or self._is_pausing or session.is_empty:
            return
        if under_way and (not self._is_urgent or session.is_opening or under_way >= MAX_FETCHES_UNDER_WAY):
            return
        channel = self._link.channel
        if channel is None:
            self._link.want()
        else:
            self._is_urgent = False
            # The first answer brings the session's id: until then nothing else can be asked.
            is_short = session.is_opening and not session.is_without
            self._send_fetch(channel, 0 if is_short else self._settings.replica_fetch_wait_max_ms)

    def _send_fetch(self, channel: LeaderChannel, max_wait_ms: int) -> None:
        session, settings = self.session, self._settings
        session_id, session_epoch, positions, forgotten = session.next_request()
        request = FollowerRequest(
            self.broker.broker_id,
            self.broker.broker_epoch,
            max_wait_ms,
            settings.replica_fetch_min_bytes,
            settings.replica_fetch_response_max_bytes,
            session_id,
            session_epoch,
            positions,
            forgotten,
        )
        self._fetches += 1
        channel.send(
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
        clock = self.broker.clock
        now_ms = clock.now_ms()
        for news in response.partitions:
            position = session.position_of(news.topic_id, news.index)
            if position is not None and number >= position.valid_from:
                self._take(cast(FollowedPartition, position), news, now_ms)
        self._fetch()

    def _on_fetch_refused(self, error: ErrorCode) -> None:
        """The whole request. A session that is gone is begun anew at once, but not again and again."""
        self.session.restart()
        self._failures += 1
        if error in _SESSION_IS_GONE and self._failures == 1:
            self._fetch()
            return
        _log.warning("leader refuses to be fetched from", leader=self.leader_id, error=error.name)
        self._is_pausing = True
        self.broker.timer.add(
            self._end_pause, self.broker.timer.now_ms() + self._settings.replica_fetch_backoff_ms
        )

    def _end_pause(self) -> None:
        self._is_pausing = False
        self._fetch()

    def _take(self, followed: FollowedPartition, news: PartitionNews, now_ms: int) -> None:
        """What the answer says of one partition."""
        if news.error_code:
            self._refused(followed, ErrorCode(news.error_code))
            return
        diverging = news.diverging
        replica, core = followed.replica, followed.replica.core
        if diverging is not None:
            self.session.remove(followed)
            replica.step(EpochDiverged(followed.leader_epoch, *diverging), now_ms)
            if followed.refresh():
                self.resume(followed)
            elif followed.may_fetch:  # nothing to cut: to ask again at once would not change that
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
        if core.fetch_state is not FetchState.FETCHING:  # it is begun anew first
            self.session.remove(followed)
            return
        followed.failures = 0
        followed.lag = max(0, news.high_watermark - core.log_end_offset)
        if headers:
            self._owner.received(followed, _bytes_below(core.log_end_offset, headers))
            if (
                replica.log.is_flush_due_by_messages
            ):  # `flush.messages`: on the disk before the leader counts it
                self.session.remove(followed)
                self._owner.flush_log(followed)
                return
        if followed.refresh():
            self.session.moved(followed)

    # -- what goes wrong with one partition

    def _refused(self, followed: FollowedPartition, error: ErrorCode) -> None:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            # The leader's log does not reach the fetch offset: where does it begin and end?
            self.session.remove(followed)
            self.questions.ask_bounds(followed)
            return
        self.failed(followed, KafkaError(error))

    def failed(self, followed: FollowedPartition, error: KafkaError) -> None:
        """Leave it alone for a while, longer each time in a row."""
        self.session.remove(followed)
        pause_ms = followed.backoff_ms(self._settings.replica_fetch_backoff_ms)
        is_first = followed.failures == (
            FAILURES_EXPECTED if error.code in EXPECTED_WHILE_ROLES_CHANGE else 1
        )
        if is_first or followed.failures % FAILURES_BETWEEN_WARNINGS == 0:
            _log.warning(
                "partition can't be followed",
                partition=str(followed.replica.topic_partition),
                leader=self.leader_id,
                leader_epoch=followed.leader_epoch,
                error=error.code.name,
                reason=str(error),
                failures=followed.failures,
            )
        self.resume_after(followed, pause_ms)

    def resume_after(self, followed: FollowedPartition, pause_ms: int) -> None:
        timer = self.broker.timer
        timer.add(partial(self.resume, followed), timer.now_ms() + pause_ms)

    # -- for LeaderQuestions

    def channel_for_questions(self) -> LeaderChannel | None:
        """None: not now; `LeaderQuestions.send` is called when there is one."""
        channel = self._link.channel
        if self.is_stopped:
            return None
        if channel is None:
            self._link.want()
        # Answers come in order, and a Fetch may wait at the leader: one that does not wait ends it.
        elif self._fetches == 1 and not self.session.is_opening and not self._is_pausing:
            self._send_fetch(channel, 0)
        return channel

    def follows(self, replica: Replica) -> bool:
        return not self.is_stopped and self._owner.is_followed(replica)


def _bytes_below(log_end_offset: int, headers: Sequence[BatchHeader]) -> int:
    """Of those that were appended: a segment's end may have stopped it."""
    if headers[-1].base_offset >= log_end_offset:
        headers = [header for header in headers if header.base_offset < log_end_offset]
    return sum([header.batch_length for header in headers]) + LOG_OVERHEAD_BYTES * len(headers)


_NO_RECORDS: Final = memoryview(b"")
