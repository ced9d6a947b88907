"""ShareAcknowledge v1 and v2: a member of a share group says what became of its records (KIP-932). ShareFetch
uses the parts that both APIs have in common: sessions, acknowledgements and errors.

The response leaves when the share coordinator has stored the acknowledgements. Source: Kafka's
`SharePartitionManager.acknowledge`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from tidelog.broker.cluster.view import CurrentSettings, MetadataView
from tidelog.broker.hosting.hosted_partitions import HostedPartitions
from tidelog.broker.hosting.replica import Replica
from tidelog.broker.requests.request import PARKED, Answer, Reply, RequestContext, RequestSource
from tidelog.broker.requests.waiting import DelayedRequest, WaitingRequests
from tidelog.broker.security.authorizer import Authorizer
from tidelog.broker.share.deliveries import (
    AcknowledgedBatch,
    AcknowledgementsOf,
    AcknowledgeResult,
    AcknowledgeType,
)
from tidelog.broker.share.share_partitions import RANGES_OF_A_STEP, SharePartitions
from tidelog.broker.share.share_sessions import SessionKey, ShareSession, is_final, is_initial
from tidelog.kernel.instants import MonotonicMs
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.acl import AclOperation, ResourceType
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import MAX_NAME_BYTES, SharePartitionKey, TopicPartition, is_too_long
from tidelog.settings.group_settings import GroupSettings
from tidelog.wire.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

ACKNOWLEDGE_TIMEOUT_MS: Final = 15_000
"""The time after which an acknowledgement that is still being stored fails with REQUEST_TIMED_OUT. It is half
of the clients' `request.timeout.ms`. It may still take effect.
"""
PARTITIONS_AT_ONCE: Final = 100
"""The most partitions that a request handles in one turn of the event loop. Those of a request or a session
with more are handled in slices.
"""
MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""The errors that come with the leader that this broker knows (KIP-951)."""
UNKNOWN_LEADER: Final = (-1, -1)
"""The leader and epoch that come without these errors. The message's default is 0 and 0, although a broker
can have the id 0. After any error, franz-go 1.22 fetches from the named leader. If there is no broker 0, it
never returns to the right one.
"""


class WireBatch(Protocol):
    """An acknowledged batch in the messages of both APIs."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class ShareRequestParts(NamedTuple):
    """The parts of the broker that both handlers use."""

    hosted: HostedPartitions
    metadata: MetadataView
    partitions: SharePartitions
    waiting: WaitingRequests
    settings: CurrentSettings
    telemetry: Telemetry
    authorizer: Authorizer | None

    def group_settings(self, group_id: str) -> GroupSettings:
        return self.partitions.parts.settings.for_group(group_id)

    def replica(self, context: RequestContext, topic_id: UUID, partition: int) -> Replica:
        """Returns the replica of a partition that this broker leads and the client may read. Raises
        KafkaError.
        """
        topic = self.metadata.topic_names.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if self.authorizer is not None and not self.authorizer.may(
            context, AclOperation.READ, ResourceType.TOPIC, topic
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return self.hosted.leader_replica(topic, partition)

    def topic_partition(self, topic_id: UUID, partition: int) -> TopicPartition:
        """Returns the partition by its topic's name, which is empty if the topic is unknown."""
        return TopicPartition(self.metadata.topic_names.get(topic_id, ""), partition)

    def current_leader(self, topic_id: UUID, partition: int) -> tuple[int, int]:
        """Returns the leader and its epoch for a client that asked the wrong broker."""
        topic_partition = self.topic_partition(topic_id, partition)
        return self.hosted.leader_of(topic_partition.topic, partition) or UNKNOWN_LEADER

    def endpoints(
        self, leaders: Iterable[int], listener_name: str
    ) -> Iterator[tuple[int, str, int, str | None]]:
        """Yields the id, host, port and rack of brokers, so that a client need not ask for them."""
        for node, endpoint in self.metadata.nodes(leaders, listener_name):
            yield node.broker_id, endpoint.host, endpoint.port, node.rack

    def watch_connection(self, connection: RequestSource) -> None:
        """Ends the sessions of a connection with it."""
        connection.on_closed = self.partitions.connection_closed


def session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    """Returns the key of a request's session. Raises KafkaError INVALID_REQUEST or INVALID_GROUP_ID."""
    if not group_id or not member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names no group or no member")
    if is_too_long(group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"the group's id has more than {MAX_NAME_BYTES} bytes")
    if is_too_long(member_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the member's id has more than {MAX_NAME_BYTES} bytes")
    return SessionKey(group_id, member_id)


class PartitionResult(NamedTuple):
    """The acknowledgement of one partition, and its result."""

    key: SharePartitionKey
    result: AcknowledgeResult


class Acknowledgements:
    """The acknowledgements of one request."""

    __slots__ = ("_context", "_may_renew", "_named", "_parts", "_session", "_unknown", "results")

    def __init__(
        self, parts: ShareRequestParts, context: RequestContext, session: SessionKey, *, may_renew: bool
    ) -> None:
        self._named: dict[tuple[UUID, int], list[WireBatch]] = {}
        self._parts = parts
        self._context = context
        self._session = session
        self._may_renew = may_renew
        self.results: list[PartitionResult] = []
        self._unknown: dict[Hashable, PartitionResult] = {}
        """The results that are not known yet, by the key under which they are waited for."""

    def add(self, topic_id: UUID, partition: int, batches: Iterable[WireBatch]) -> None:
        """Adds batches of one partition. Those of a partition that is named repeatedly become one
        acknowledgement.
        """
        self._named.setdefault((topic_id, partition), []).extend(batches)

    @property
    def is_long(self) -> bool:
        """Whether `begin` takes too long for one turn of the event loop."""
        return len(self._named) > PARTITIONS_AT_ONCE

    def begin(self) -> Steps[None]:
        """Starts to acknowledge the records of all partitions."""
        for (topic_id, partition), batches in self._named.items():
            key = SharePartitionKey(self._session.group_id, topic_id, partition)
            range_count = 0
            try:
                self._parts.replica(self._context, topic_id, partition)
                found = self._parts.partitions.find(key)
                if found is None:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD_STATE,
                        "this leader has delivered no record to the member yet",
                    )
                acknowledged = _checked(batches, may_renew=self._may_renew)
                result = found.acknowledge(self._session.member_id, acknowledged)
                range_count = found.range_count
            except KafkaError as error:
                result = AcknowledgeResult(error.code, error.client_message)
            self.results.append(PartitionResult(key, result))
            if result.error is None:
                self._unknown[AcknowledgementsOf(key)] = self.results[-1]
            yield from repeat(None, 1 + range_count // RANGES_OF_A_STEP)
        self._named.clear()

    def is_done(self, changed: Hashable | None = None) -> bool:
        """Returns whether all results are known after a look at what `changed` names, or at everything."""
        keys = tuple(self._unknown) if changed is None else (changed,)
        for key in keys:
            waiting = self._unknown.get(key)
            if waiting is None:
                continue
            self._parts.partitions.find(waiting.key)  # ends it if this broker no longer leads
            if waiting.result.error is not None:
                self._unknown.pop(key, None)  # `find` may have looked at it already
        return not self._unknown

    def wait(self, then: Callable[[], None]) -> None:
        """Calls `then` when all results are known. The request must be parked."""
        waiting = self._parts.waiting
        operation = _DelayedAcknowledgements(self, self._context, then)
        self._context.on_abandoned = lambda: waiting.fetch.cancel(operation)
        deadline_ms = MonotonicMs(waiting.timer.monotonic_ms() + ACKNOWLEDGE_TIMEOUT_MS)
        waiting.fetch.watch(operation, tuple(self._unknown), deadline_ms)

    def give_up(self) -> None:
        """Makes the results that are not known yet timeouts."""
        for _, result in self.results:
            if result.error is None:
                result.error = ErrorCode.REQUEST_TIMED_OUT
                result.message = "the share coordinator has not stored the acknowledgement in time"


class _DelayedAcknowledgements(DelayedRequest):
    """Waits until acknowledgements are stored."""

    __slots__ = ("_acknowledgements", "_then")

    def __init__(
        self, acknowledgements: Acknowledgements, context: RequestContext, then: Callable[[], None]
    ) -> None:
        super().__init__(context)
        self._acknowledgements = acknowledgements
        self._then = then

    def on_change(self, key: Hashable | None) -> bool:
        return self._acknowledgements.is_done(key)

    def on_expire(self) -> None:
        self._acknowledgements.give_up()

    def on_complete(self) -> None:
        self._then()


def _checked(batches: Sequence[WireBatch], *, may_renew: bool) -> list[AcknowledgedBatch]:
    """Returns the batches of one partition. Raises KafkaError INVALID_REQUEST."""
    most = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    checked = []
    end = -1
    for batch in batches:
        types = batch.acknowledge_types
        if not 0 <= batch.first_offset <= batch.last_offset or batch.first_offset <= end:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the acknowledged batches are not in order")
        if len(types) not in (1, batch.last_offset - batch.first_offset + 1):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the number of types is not that of the offsets")
        if not 0 <= min(types) <= max(types) <= most:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an acknowledge type is unknown or not allowed")
        checked.append(AcknowledgedBatch(batch.first_offset, batch.last_offset, types))
        end = batch.last_offset
    return checked


class ShareAcknowledgeHandler:
    """Answers ShareAcknowledge."""

    def __init__(self, parts: ShareRequestParts) -> None:
        self._parts = parts

    def handle(self, request: ShareAcknowledgeRequest, context: RequestContext) -> Answer:
        parts, sessions = self._parts, self._parts.partitions.sessions
        try:
            key = session_key(request.group_id, request.member_id)
            if is_initial(request.share_session_epoch):
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            closing = sessions.find(key) if is_final(request.share_session_epoch) else None
            if closing is None:
                sessions.continue_(key, request.share_session_epoch)
        except KafkaError as error:
            return ShareAcknowledgeResponse(error_code=error.code, error_message=error.client_message)
        may_renew = request.is_renew_ack and parts.group_settings(key.group_id).share_renew_acknowledge_enable
        acknowledgements = Acknowledgements(parts, context, key, may_renew=may_renew)
        for topic in request.topics:
            for partition in topic.partitions:
                acknowledgements.add(
                    topic.topic_id, partition.partition_index, partition.acknowledgement_batches
                )
        if acknowledgements.is_long:
            return self._in_slices(acknowledgements, key, context, closing)
        all_at_once(acknowledgements.begin())
        if closing is not None:
            parts.partitions.end_session(closing)
        if acknowledgements.is_done():
            return self._response(acknowledgements, key, context)
        unanswered = context.park()
        self._wait(acknowledgements, key, context)
        return unanswered

    async def _in_slices(
        self,
        acknowledgements: Acknowledgements,
        key: SessionKey,
        context: RequestContext,
        closing: ShareSession | None,
    ) -> Reply:
        await run_in_slices(acknowledgements.begin())
        if closing is not None:
            self._parts.partitions.end_session(closing)
        if acknowledgements.is_done():
            return self._response(acknowledgements, key, context)
        self._wait(acknowledgements, key, context)
        return PARKED

    def _wait(self, acknowledgements: Acknowledgements, key: SessionKey, context: RequestContext) -> None:
        acknowledgements.wait(lambda: context.reply(self._response(acknowledgements, key, context)))

    def _response(
        self, acknowledgements: Acknowledgements, key: SessionKey, context: RequestContext
    ) -> ShareAcknowledgeResponse:
        parts = self._parts
        lock_ms = parts.group_settings(key.group_id).share_record_lock_duration_ms
        response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
        leaders: set[int] = set()
        for (_, topic_id, index), result in acknowledgements.results:
            error = result.error or ErrorCode.NONE
            leader = parts.current_leader(topic_id, index) if error in MOVED else UNKNOWN_LEADER
            leaders.add(leader[0])
            data = PartitionData(
                index, error, result.message if error else None, current_leader=LeaderIdAndEpoch(*leader)
            )
            if not response.responses or response.responses[-1].topic_id != topic_id:
                response.responses.append(ShareAcknowledgeTopicResponse(topic_id, []))
            response.responses[-1].partitions.append(data)
        response.node_endpoints = [
            NodeEndpoint(*endpoint) for endpoint in parts.endpoints(leaders, context.listener_name)
        ]
        return response
