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
from tidelog.broker.partition.events import AskEpochEnd, EpochDiverged, EpochEndReceived, FetchedOutOfRange
from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.partition.received_validation import received_headers
from tidelog.broker.replication import leader_questions as questions
from tidelog.broker.replication.followed_partition import (
    FAILURES_EXPECTED,
    FIRST_BACKOFF_MS,
    FollowedPartition,
)
from tidelog.broker.replication.follower_session import FollowerSession
from tidelog.broker.replication.leader_channel import LeaderChannel, OnLost, open_channel
from tidelog.broker.replication.leader_link import LeaderLink
from tidelog.model.brokers import Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from tidelog.wire.messages.list_offsets import ListOffsetsResponse
from tidelog.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from tidelog.broker.replica import Replica
    from tidelog.broker.replication.replica_fetchers import ReplicaFetchers

FETCH_VERSION: Final = 17
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
_EXPECTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""While roles change: one side has not heard yet."""

_log = structlog.get_logger(__name__)


class LeaderFetcher:
    """Made and stopped by `ReplicaFetchers`."""

    def __init__(self, owner: ReplicaFetchers, leader_id: int) -> None:
        self.leader_id = leader_id
        self.session = FollowerSession()
        self._owner = owner
        self._broker = owner.broker
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
        self._fetches = 0
        self._is_urgent = False
        self._is_pausing = False
        self._failures = 0
        self._unasked: dict[TopicPartition, tuple[Replica, AskEpochEnd]] = {}
        self._asked: dict[TopicPartition, tuple[Replica, AskEpochEnd]] = {}
        self._out_of_range: dict[TopicPartition, FollowedPartition] = {}
        self._bounds_asked: dict[TopicPartition, FollowedPartition] = {}
        self._asks_soon = False
        self.is_stopped = False
        self.followed_count = 0
        """Partitions that belong here, fetched at the moment or not."""

    # -- for ReplicaFetchers

    @property
    def is_idle(self) -> bool:
        return not self.followed_count and not self._unasked and not self._asked

    def resume(self, followed: FollowedPartition) -> None:
        """Fetch it, if its state is to be fetched."""
        if followed.may_fetch and not followed.is_fetched and not self.is_stopped:
            followed.refresh()
            self.session.add(followed)
            if not self._is_urgent:
                self._is_urgent = True
                self._loop.call_soon(self._fetch)

    def leave(self, followed: FollowedPartition) -> None:
        """Fetch it no longer."""
        self.session.remove(followed)
        topic_partition = followed.replica.topic_partition
        for asked in (self._out_of_range, self._bounds_asked):
            if asked.get(topic_partition) is followed:
                del asked[topic_partition]

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Until it is answered, or is out of date."""
        self._unasked[replica.topic_partition] = (replica, question)
        self._ask_soon()

    def forget_question(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Of an earlier leader epoch than this."""
        for asked in (self._unasked, self._asked):
            if topic_partition in asked and asked[topic_partition][1].leader_epoch < leader_epoch:
                del asked[topic_partition]

    def retry_now(self) -> None:
        self._link.retry_now()

    async def stop(self) -> None:
        self.is_stopped = True
        await self._link.close()

    # -- the connection

    async def _open_channel(self, endpoint: Endpoint, on_lost: OnLost) -> LeaderChannel:
        settings = self._settings
        return await open_channel(
            endpoint,
            self._owner.buffer_pool,
            client_id=f"broker-{self._broker.broker_id}-fetcher",
            receive_buffer_bytes=settings.replica_socket_receive_buffer_bytes,
            timeout_ms=settings.replica_socket_timeout_ms,
            on_lost=on_lost,
        )

    def _on_up(self) -> None:
        self._ask()
        self._fetch()

    def _on_down(self) -> None:
        self._fetches = 0
        self.session.restart()
        self._unasked = {**self._asked, **self._unasked}
        self._asked = {}
        self._out_of_range = {**self._bounds_asked, **self._out_of_range}
        self._bounds_asked = {}
        if not self.is_idle:
            self._link.want()

    # -- fetching

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
            self._send_fetch(channel, 0 if session.is_opening else self._settings.replica_fetch_wait_max_ms)

    def _send_fetch(self, channel: LeaderChannel, max_wait_ms: int) -> None:
        session, settings = self.session, self._settings
        session_id, session_epoch, topics, forgotten = session.next_request()
        request = FetchRequest(
            replica_state=ReplicaState(self._broker.broker_id, self._broker.broker_epoch),
            max_wait_ms=max_wait_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        self._fetches += 1
        channel.send(
            request,
            FETCH_VERSION,
            settings.replica_socket_timeout_ms,
            partial(self._on_fetched, session.last_request),
        )

    def _end_wait_at_leader(self, channel: LeaderChannel) -> None:
        """Answers come in order, and a Fetch may wait at the leader: one that does not wait ends it."""
        if self._fetches == 1 and not self.session.is_opening and not self._is_pausing:
            self._send_fetch(channel, 0)

    def _on_fetched(self, number: int, response: FetchResponse) -> None:
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
        clock = self._broker.clock
        now_ms = clock.now_ms()
        for topic in response.responses:
            positions = session.of_topic(topic.topic_id)
            for data in topic.partitions:
                position = positions.get(data.partition_index)
                if position is not None and number >= position.valid_from:
                    self._take(cast(FollowedPartition, position), data, now_ms)
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
        self._broker.timer.add(
            self._end_pause, self._broker.timer.now_ms() + self._settings.replica_fetch_backoff_ms
        )

    def _end_pause(self) -> None:
        self._is_pausing = False
        self._fetch()

    def _take(self, followed: FollowedPartition, data: PartitionData, now_ms: int) -> None:
        """What the answer says of one partition."""
        if data.error_code:
            self._refused(followed, ErrorCode(data.error_code))
            return
        diverging = data.diverging_epoch
        replica, core = followed.replica, followed.replica.core
        if diverging is not None:
            self.session.remove(followed)
            replica.step(EpochDiverged(followed.leader_epoch, diverging.epoch, diverging.end_offset), now_ms)
            if followed.refresh():
                self.resume(followed)
            elif followed.may_fetch:  # nothing to cut: to ask again at once would not change that
                self._failed(followed, KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "the logs disagree"))
            return
        records = cast("memoryview | None", data.records)
        headers: Sequence[BatchHeader] = ()
        try:
            if records:
                is_empty = core.log_start_offset == core.log_end_offset
                headers = received_headers(records, 0 if is_empty else core.log_end_offset)
            is_done = replica.append_received(
                records or _NO_RECORDS,
                headers,
                followed.leader_epoch,
                data.high_watermark,
                data.log_start_offset,
                now_ms,
            )
        except KafkaError as error:
            self._failed(followed, error)
            return
        if not is_done:
            self.session.remove(followed)
            self._owner.flush_epochs(followed)
            return
        if core.fetch_state is not FetchState.FETCHING:  # it is begun anew first
            self.session.remove(followed)
            return
        followed.failures = 0
        followed.lag = max(0, data.high_watermark - core.log_end_offset)
        if headers:
            self._owner.received(followed, headers)
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
            self._out_of_range[followed.replica.topic_partition] = followed
            self._ask_soon()
            return
        self._failed(followed, KafkaError(error))

    def _failed(self, followed: FollowedPartition, error: KafkaError) -> None:
        self.session.remove(followed)
        pause_ms = followed.backoff_ms(self._settings.replica_fetch_backoff_ms)
        is_first = followed.failures == (FAILURES_EXPECTED if error.code in _EXPECTED else 1)
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
        timer = self._broker.timer
        timer.add(partial(self.resume, followed), timer.now_ms() + pause_ms)

    # -- questions

    def _ask_soon(self) -> None:
        if not self._asks_soon:
            self._asks_soon = True
            self._loop.call_soon(self._ask)

    def _ask(self) -> None:
        """Send the questions gathered so far: of each kind one at a time, the others go with the next."""
        self._asks_soon = False
        asks_epochs = bool(self._unasked) and not self._asked
        asks_bounds = bool(self._out_of_range) and not self._bounds_asked
        if self.is_stopped or not (asks_epochs or asks_bounds):
            return
        channel = self._link.channel
        if channel is None:
            self._link.want()
            return
        self._end_wait_at_leader(channel)
        if asks_epochs:
            self._ask_epoch_ends(channel)
        if asks_bounds:
            self._ask_bounds(channel)

    def _ask_epoch_ends(self, channel: LeaderChannel) -> None:
        asked = list(self._unasked.items())[: questions.MAX_PARTITIONS_PER_QUESTION]
        for topic_partition, question in asked:
            self._asked[topic_partition] = question
            del self._unasked[topic_partition]
        request = questions.epoch_end_request(
            self._broker.broker_id,
            ((topic_partition, ask.leader_epoch, ask.epoch) for topic_partition, (_, ask) in asked),
        )
        channel.send(
            request,
            questions.OFFSET_FOR_LEADER_EPOCH_VERSION,
            self._settings.replica_socket_timeout_ms,
            self._on_epoch_ends,
        )

    def _on_epoch_ends(self, response: OffsetForLeaderEpochResponse) -> None:
        asked, self._asked = self._asked, {}
        now_ms = self._broker.clock.now_ms()
        for answer in questions.epoch_end_answers(response):
            known = asked.pop(answer.topic_partition, None)
            if known is None:
                continue
            replica, question = known
            if answer.error_code:
                self._ask_later(replica, question, ErrorCode(answer.error_code))
                continue
            event = EpochEndReceived(question.leader_epoch, question.epoch, answer.epoch, answer.end_offset)
            replica.step(event, now_ms)
            self._owner.resume(replica)
        for replica, question in asked.values():  # not answered
            self._ask_later(replica, question, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._link.works()
        self._ask()

    def _ask_later(self, replica: Replica, question: AskEpochEnd, error: ErrorCode) -> None:
        if error not in _EXPECTED:
            _log.warning(
                "leader does not tell where an epoch ends",
                partition=str(replica.topic_partition),
                leader=self.leader_id,
                error=error.name,
            )
        timer = self._broker.timer
        timer.add(partial(self._ask_again, replica, question), timer.now_ms() + FIRST_BACKOFF_MS)

    def _ask_again(self, replica: Replica, question: AskEpochEnd) -> None:
        core = replica.core
        if (
            core.leader_epoch == question.leader_epoch
            and core.fetch_state is FetchState.TRUNCATING
            and self._owner.is_followed(replica)
            and not self.is_stopped
        ):
            self.ask_epoch_end(replica, question)

    def _ask_bounds(self, channel: LeaderChannel) -> None:
        asked = list(self._out_of_range.items())[: questions.MAX_PARTITIONS_PER_QUESTION]
        for topic_partition, followed in asked:
            self._bounds_asked[topic_partition] = followed
            del self._out_of_range[topic_partition]
        starts: dict[TopicPartition, questions.OffsetAnswer] = {}
        for timestamp, on_answer in (
            (questions.EARLIEST, partial(self._on_starts, starts)),
            (questions.LATEST, partial(self._on_ends, starts)),
        ):
            request = questions.offset_request(
                self._broker.broker_id,
                ((topic_partition, followed.leader_epoch) for topic_partition, followed in asked),
                timestamp,
            )
            channel.send(
                request,
                questions.LIST_OFFSETS_VERSION,
                self._settings.replica_socket_timeout_ms,
                on_answer,
            )

    def _on_starts(
        self, starts: dict[TopicPartition, questions.OffsetAnswer], response: ListOffsetsResponse
    ) -> None:
        starts.update(questions.offset_answers(response))

    def _on_ends(
        self, starts: dict[TopicPartition, questions.OffsetAnswer], response: ListOffsetsResponse
    ) -> None:
        asked, self._bounds_asked = self._bounds_asked, {}
        ends = questions.offset_answers(response)
        for topic_partition, followed in asked.items():
            self._bounded(followed, starts.get(topic_partition), ends.get(topic_partition))
        self._ask()

    def _bounded(
        self,
        followed: FollowedPartition,
        start: questions.OffsetAnswer | None,
        end: questions.OffsetAnswer | None,
    ) -> None:
        if followed.is_stopped:
            return
        if start is None or end is None:
            self._failed(followed, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "no bounds in the answer"))
            return
        for bound in (start, end):
            if bound.error_code:
                self._failed(followed, KafkaError(ErrorCode(bound.error_code)))
                return
        event = FetchedOutOfRange(followed.leader_epoch, start.offset, end.offset)
        followed.replica.step(event, self._broker.clock.now_ms())
        self.resume_after(followed, followed.backoff_ms(self._settings.replica_fetch_backoff_ms))


_NO_RECORDS: Final = memoryview(b"")
