"""What a follower asks its leader beside records: where a leader epoch ends in its log, and where that log
begins and ends. Gathered over a turn of the loop, many partitions in one request, one request of a kind at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import structlog
from tidelog.broker.partition.events import AskEpochEnd, EpochEndReceived, FetchedOutOfRange
from tidelog.broker.partition.follower_role import FetchState
from tidelog.broker.replication.followed_partition import (
    EXPECTED_WHILE_ROLES_CHANGE,
    FIRST_BACKOFF_MS,
    FollowedPartition,
)
from tidelog.broker.replication.leader_channel import LeaderChannel, Question
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.replica import Replica
    from tidelog.broker.replication.leader_fetcher import LeaderFetcher

EPOCH_ENDS: Final = Question(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
OFFSETS: Final = Question(ApiKey.LIST_OFFSETS, 8)
MAX_PARTITIONS_PER_REQUEST: Final = 2_000
EARLIEST: Final = -2
LATEST: Final = -1
"""For a follower the log's end, not its high watermark."""

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


class _EpochQuestion(NamedTuple):
    replica: Replica
    question: AskEpochEnd


class LeaderQuestions:
    """Of one fetcher, over its channel. A question stands until it is answered or out of date."""

    def __init__(self, fetcher: LeaderFetcher, resume: Callable[[Replica], None]) -> None:
        self._fetcher = fetcher
        self._broker = fetcher.broker
        self._resume = resume
        self._epochs: dict[TopicPartition, _EpochQuestion] = {}
        self._epochs_asked: dict[TopicPartition, _EpochQuestion] = {}
        self._bounds: dict[TopicPartition, FollowedPartition] = {}
        self._bounds_asked: dict[TopicPartition, FollowedPartition] = {}
        self._is_asking_epochs = False
        self._is_asking_bounds = False
        self._sends_soon = False

    @property
    def is_empty(self) -> bool:
        return not (self._epochs or self._epochs_asked or self._bounds or self._bounds_asked)

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """The answer is EpochEndReceived."""
        self._epochs[replica.topic_partition] = _EpochQuestion(replica, question)
        self._send_soon()

    def ask_bounds(self, followed: FollowedPartition) -> None:
        """Where does the leader's log begin and end, if the fetch offset is outside? The answer is
        FetchedOutOfRange.
        """
        self._bounds[followed.replica.topic_partition] = followed
        self._send_soon()

    def forget(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """What was asked of it in that leader epoch or before."""
        for epochs in (self._epochs, self._epochs_asked):
            if topic_partition in epochs and epochs[topic_partition].question.leader_epoch <= leader_epoch:
                del epochs[topic_partition]
        for bounds in (self._bounds, self._bounds_asked):
            if topic_partition in bounds and bounds[topic_partition].leader_epoch <= leader_epoch:
                del bounds[topic_partition]

    def connection_lost(self) -> None:
        """What is not answered is asked again."""
        self._epochs = {**self._epochs_asked, **self._epochs}
        self._bounds = {**self._bounds_asked, **self._bounds}
        self._epochs_asked, self._bounds_asked = {}, {}
        self._is_asking_epochs = self._is_asking_bounds = False

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self.send)

    def send(self) -> None:
        """Ask what there is to ask, now that there may be a channel."""
        self._sends_soon = False
        if not (self._epochs or self._bounds):
            return
        channel = self._fetcher.channel_for_questions()
        if channel is None:
            return
        if self._epochs and not self._is_asking_epochs:
            self._send_epochs(channel)
        if self._bounds and not self._is_asking_bounds:
            self._send_bounds(channel)

    # -- where epochs end

    def _send_epochs(self, channel: LeaderChannel) -> None:
        self._is_asking_epochs = True
        self._epochs_asked = _take(self._epochs)
        topics: dict[str, OffsetForLeaderTopic] = {}
        for (topic, partition), (_, question) in self._epochs_asked.items():
            topics.setdefault(topic, OffsetForLeaderTopic(topic, [])).partitions.append(
                OffsetForLeaderPartition(partition, question.leader_epoch, question.epoch)
            )
        request = OffsetForLeaderEpochRequest(self._broker.broker_id, list(topics.values()))
        timeout_ms = self._broker.settings.replica_socket_timeout_ms
        channel.send(EPOCH_ENDS, request, timeout_ms, self._on_epoch_ends)

    def _on_epoch_ends(self, response: OffsetForLeaderEpochResponse) -> None:
        asked, self._epochs_asked = self._epochs_asked, {}
        self._is_asking_epochs = False
        now_ms = self._broker.clock.now_ms()
        for topic in response.topics:
            for answer in topic.partitions:
                known = asked.pop(TopicPartition(topic.topic, answer.partition), None)
                if known is None:
                    continue  # forgotten meanwhile
                replica, question = known
                if answer.error_code:
                    self._ask_later(known, ErrorCode(answer.error_code))
                    continue
                replica.step(
                    EpochEndReceived(
                        question.leader_epoch, question.epoch, answer.leader_epoch, answer.end_offset
                    ),
                    now_ms,
                )
                self._resume(replica)
        for known in asked.values():
            self._ask_later(known, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.send()

    def _ask_later(self, known: _EpochQuestion, error: ErrorCode) -> None:
        if error not in EXPECTED_WHILE_ROLES_CHANGE:
            _log.warning(
                "leader does not tell where an epoch ends",
                partition=str(known.replica.topic_partition),
                leader=self._fetcher.leader_id,
                error=error.name,
            )
        timer = self._broker.timer
        timer.add(partial(self._ask_again, known), timer.now_ms() + FIRST_BACKOFF_MS)

    def _ask_again(self, known: _EpochQuestion) -> None:
        replica, question = known
        core = replica.core
        if (
            core.leader_epoch == question.leader_epoch
            and core.fetch_state is FetchState.TRUNCATING
            and self._fetcher.follows(replica)
        ):
            self.ask_epoch_end(replica, question)

    # -- where the log begins and ends

    def _send_bounds(self, channel: LeaderChannel) -> None:
        self._is_asking_bounds = True
        self._bounds_asked = _take(self._bounds)
        starts: dict[TopicPartition, tuple[int, int]] = {}
        timeout_ms = self._broker.settings.replica_socket_timeout_ms
        for timestamp, on_answer in (
            (EARLIEST, lambda response: starts.update(_offsets(response))),
            (LATEST, partial(self._on_bounds, starts)),
        ):
            request = _offset_request(self._broker.broker_id, self._bounds_asked.values(), timestamp)
            channel.send(OFFSETS, request, timeout_ms, on_answer)

    def _on_bounds(
        self, starts: dict[TopicPartition, tuple[int, int]], response: ListOffsetsResponse
    ) -> None:
        asked, self._bounds_asked = self._bounds_asked, {}
        self._is_asking_bounds = False
        now_ms = self._broker.clock.now_ms()
        ends = dict(_offsets(response))
        unanswered = (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
        for topic_partition, followed in asked.items():
            start_error, start = starts.get(topic_partition, unanswered)
            end_error, end = ends.get(topic_partition, unanswered)
            if start_error or end_error:
                self._fetcher.failed(followed, KafkaError(ErrorCode(start_error or end_error)))
                continue
            followed.replica.step(FetchedOutOfRange(followed.leader_epoch, start, end), now_ms)
            # Not at once: a leader whose answers contradict each other is not asked in a tight loop.
            self._fetcher.resume_after(
                followed, followed.backoff_ms(self._broker.settings.replica_fetch_backoff_ms)
            )
        self.send()


def _take(waiting: dict[TopicPartition, _T]) -> dict[TopicPartition, _T]:
    """Move as many as one request takes."""
    taken = {key: waiting[key] for key in list(waiting)[:MAX_PARTITIONS_PER_REQUEST]}
    for key in taken:
        del waiting[key]
    return taken


def _offset_request(
    replica_id: int, partitions: Iterable[FollowedPartition], timestamp: int
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for followed in partitions:
        topic, partition = followed.replica.topic_partition
        topics.setdefault(topic, ListOffsetsTopic(topic, [])).partitions.append(
            ListOffsetsPartition(partition, followed.leader_epoch, timestamp)
        )
    return ListOffsetsRequest(replica_id=replica_id, topics=list(topics.values()))


def _offsets(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
    """(partition, (error code, offset))."""
    for topic in response.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), (part.error_code, part.offset)
