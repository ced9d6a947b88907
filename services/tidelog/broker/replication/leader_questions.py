"""The questions of a follower to its leader about its log: where a leader epoch ends (OffsetForLeaderEpoch),
and where the log starts and ends (ListOffsets).

The questions of one iteration of the event loop share a request. One request of a kind is in flight at a
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog

from tidelog.broker.hosting.replica import Replica
from tidelog.broker.partition.events import AskEpochEnd, EpochEndReceived, FetchedOutOfRange
from tidelog.broker.partition.roles import FetchState
from tidelog.broker.replication.followed_partition import (
    EXPECTED_WHILE_ROLES_CHANGE,
    FIRST_BACKOFF_MS,
    FollowedPartition,
    FollowerContext,
)
from tidelog.broker.replication.leader_connection import LeaderConnection, Question
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.protocol_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
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

EPOCH_ENDS: Final = Question(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4)
OFFSETS: Final = Question(ApiKey.LIST_OFFSETS, 8)
MAX_PARTITIONS_PER_REQUEST: Final = 2_000

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


class _EpochQuestion(NamedTuple):
    replica: Replica
    question: AskEpochEnd


class QuestionOwner(Protocol):
    """The fetcher whose connection carries the questions."""

    @property
    def leader_id(self) -> int: ...

    def connection_for_questions(self) -> LeaderConnection | None:
        """Returns the connection. If it is None now, `LeaderQuestions.send` is called when there is one."""
        ...

    def follows(self, replica: Replica) -> bool:
        """Returns whether this broker still follows the leader in this replica."""
        ...

    def resume_replica(self, replica: Replica) -> None:
        """Fetches the replica again, if its state allows it."""
        ...

    def failed(self, followed: FollowedPartition, error: KafkaError) -> None:
        """Pauses a partition after an error."""
        ...

    def resume_after(self, followed: FollowedPartition, pause_ms: int) -> None:
        """Fetches a partition again after a pause."""
        ...


class LeaderQuestions:
    """The questions of one fetcher. A question is asked again until it is answered or out of date."""

    def __init__(self, owner: QuestionOwner, context: FollowerContext) -> None:
        self._owner = owner
        self._context = context
        self._epochs: dict[TopicPartition, _EpochQuestion] = {}
        self._epochs_asked: dict[TopicPartition, _EpochQuestion] = {}
        self._bounds: dict[TopicPartition, FollowedPartition] = {}
        self._bounds_asked: dict[TopicPartition, FollowedPartition] = {}
        self._is_asking_epochs = False
        self._is_asking_bounds = False
        self._sends_soon = False

    @property
    def is_empty(self) -> bool:
        """Whether no question is open."""
        return not (self._epochs or self._epochs_asked or self._bounds or self._bounds_asked)

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Asks where a leader epoch ends. The replica receives the answer as EpochEndReceived."""
        self._epochs[replica.topic_partition] = _EpochQuestion(replica, question)
        self._send_soon()

    def ask_bounds(self, followed: FollowedPartition) -> None:
        """Asks where the leader's log starts and ends, because the fetch offset is outside. The replica
        receives the answer as FetchedOutOfRange.
        """
        self._bounds[followed.replica.topic_partition] = followed
        self._send_soon()

    def forget(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Drops the questions about a partition in this leader epoch and in earlier ones."""
        for epochs in (self._epochs, self._epochs_asked):
            if topic_partition in epochs and epochs[topic_partition].question.leader_epoch <= leader_epoch:
                del epochs[topic_partition]
        for bounds in (self._bounds, self._bounds_asked):
            if topic_partition in bounds and bounds[topic_partition].leader_epoch <= leader_epoch:
                del bounds[topic_partition]

    def connection_lost(self) -> None:
        """Schedules the unanswered questions again."""
        self._epochs = {**self._epochs_asked, **self._epochs}
        self._bounds = {**self._bounds_asked, **self._bounds}
        self._epochs_asked, self._bounds_asked = {}, {}
        self._is_asking_epochs = self._is_asking_bounds = False

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self.send)

    def send(self) -> None:
        """Sends the open questions, if there is a connection."""
        self._sends_soon = False
        if not (self._epochs or self._bounds):
            return
        connection = self._owner.connection_for_questions()
        if connection is None:
            return
        if self._epochs and not self._is_asking_epochs:
            self._send_epochs(connection)
        if self._bounds and not self._is_asking_bounds:
            self._send_bounds(connection)

    # -- where epochs end

    def _send_epochs(self, connection: LeaderConnection) -> None:
        self._is_asking_epochs = True
        self._epochs_asked = _take(self._epochs)
        topics: dict[str, OffsetForLeaderTopic] = {}
        for (topic, partition), (_, question) in self._epochs_asked.items():
            topics.setdefault(topic, OffsetForLeaderTopic(topic, [])).partitions.append(
                OffsetForLeaderPartition(partition, question.leader_epoch, question.epoch)
            )
        request = OffsetForLeaderEpochRequest(self._context.identity.broker_id, list(topics.values()))
        timeout_ms = self._context.settings.broker.replica_socket_timeout_ms
        connection.send(EPOCH_ENDS, request, timeout_ms, self._on_epoch_ends)

    def _on_epoch_ends(self, response: OffsetForLeaderEpochResponse) -> None:
        asked, self._epochs_asked = self._epochs_asked, {}
        self._is_asking_epochs = False
        for topic in response.topics:
            for answer in topic.partitions:
                known = asked.pop(TopicPartition(topic.topic, answer.partition), None)
                if known is None:
                    continue  # it was dropped in the meantime
                replica, question = known
                if answer.error_code:
                    self._ask_later(known, ErrorCode(answer.error_code))
                    continue
                replica.step(
                    EpochEndReceived(
                        question.leader_epoch, question.epoch, answer.leader_epoch, answer.end_offset
                    )
                )
                self._owner.resume_replica(replica)
        for known in asked.values():
            self._ask_later(known, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.send()

    def _ask_later(self, known: _EpochQuestion, error: ErrorCode) -> None:
        if error not in EXPECTED_WHILE_ROLES_CHANGE:
            _log.warning(
                "leader did not answer where a leader epoch ends",
                partition=str(known.replica.topic_partition),
                leader=self._owner.leader_id,
                error=error.name,
            )
        timer = self._context.timer
        timer.add_after(partial(self._ask_again, known), FIRST_BACKOFF_MS)

    def _ask_again(self, known: _EpochQuestion) -> None:
        replica, question = known
        core = replica.core
        if (
            core.leader_epoch == question.leader_epoch
            and core.fetch_state is FetchState.TRUNCATING
            and self._owner.follows(replica)
        ):
            self.ask_epoch_end(replica, question)

    # -- where the log begins and ends

    def _send_bounds(self, connection: LeaderConnection) -> None:
        self._is_asking_bounds = True
        self._bounds_asked = _take(self._bounds)
        starts: dict[TopicPartition, tuple[int, int]] = {}
        timeout_ms = self._context.settings.broker.replica_socket_timeout_ms
        for timestamp, on_answer in (
            (EARLIEST_TIMESTAMP, lambda response: starts.update(_offsets(response))),
            (LATEST_TIMESTAMP, partial(self._on_bounds, starts)),
        ):
            request = _offset_request(
                self._context.identity.broker_id, self._bounds_asked.values(), timestamp
            )
            connection.send(OFFSETS, request, timeout_ms, on_answer)

    def _on_bounds(
        self, starts: dict[TopicPartition, tuple[int, int]], response: ListOffsetsResponse
    ) -> None:
        asked, self._bounds_asked = self._bounds_asked, {}
        self._is_asking_bounds = False
        ends = dict(_offsets(response))
        unanswered = (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
        for topic_partition, followed in asked.items():
            start_error, start = starts.get(topic_partition, unanswered)
            end_error, end = ends.get(topic_partition, unanswered)
            if start_error or end_error:
                self._owner.failed(followed, KafkaError(ErrorCode(start_error or end_error)))
                continue
            followed.replica.step(FetchedOutOfRange(followed.leader_epoch, start, end))
            # After a pause, because a leader may contradict itself, and must not be asked in a tight loop.
            self._owner.resume_after(
                followed, followed.backoff_ms(self._context.settings.broker.replica_fetch_backoff_ms)
            )
        self.send()


def _take(waiting: dict[TopicPartition, _T]) -> dict[TopicPartition, _T]:
    """Removes and returns as many questions as fit into one request."""
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
    """Yields pairs of a partition and its (error code, offset)."""
    for topic in response.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), (part.error_code, part.offset)
